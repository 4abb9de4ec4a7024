#!/usr/bin/env python3
"""Replays the transcript of docs/OPERATING.md in a pseudo-terminal against a real cluster, and compares.

transcript.py ORDERMOE DATA DOCUMENT [--write]

The transcript is the code block behind the line `<!-- transcript -->`. What stands behind "$ " is typed to a shell, what stands
behind "ordermoe> " to the console that `ordermoe admin` opens; what follows, up to the next of these, is expected. Numbers
and widths are not compared: every number counts as #, every run of blanks as one. Commands that only look are asked again for a while,
since nodes need some time to notice that one of them is gone or back. --write puts what came into the document.
"""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LOOKS = re.compile(r"(status|members|peers|events)\b[^|;]*$")
PATIENCE_S = 60
SHELL, CONSOLE = "$ ", "ordermoe> "


def transcript_of(text):
    """The block's place in the document, and its steps: (prompt, typed, [expected lines])."""
    found = re.search(r"<!-- transcript -->\n\n((?:    .*\n|\n(?=    ))+)", text)
    if not found:
        sys.exit("the document has no code block behind <!-- transcript -->")
    steps = []
    for line in found.group(1).splitlines():
        line = line[4:]
        for prompt in (SHELL, CONSOLE):
            if line.startswith(prompt):
                steps.append((prompt, line[len(prompt):], []))
                break
        else:
            steps[-1][2].append(line)
    return found.span(1), steps


def normalised(lines):
    plain = []
    for line in lines:
        line = re.sub(r"[0-9]+(\.[0-9]+)?", "#", line)
        # What is idle is counted in kB, and what is not in more.
        line = re.sub(r"# [kMG]B", "# B", line)
        line = re.sub(r" +", " ", line).strip()
        # Of a list of numbers it counts that it is there.
        line = re.sub(r"#(\.#)?([ ,-]#(\.#)?)+", "#", line)
        line = re.sub(r"( -)+$", "", line)
        if line:
            plain.append(line)
    return plain


class terminal:
    """A shell in a pseudo-terminal."""

    def __init__(self, folder, environment):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting"], environment)
        self.pending = ""

    def until_prompt(self):
        """Everything up to a prompt at the end of what came, which is given too."""
        last = time.monotonic() + PATIENCE_S
        while True:
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.pending).replace("\r\n", "\n")
            # What was written over is not seen.
            text = re.sub(r"[^\n]*\r", "", text)
            for prompt in (CONSOLE, SHELL):
                if text.endswith("\n" + prompt) or text == prompt:
                    self.pending = ""
                    return text[: -len(prompt)], prompt
            if time.monotonic() > last:
                sys.exit("no prompt came; the end of what did:\n" + text[-2000:])
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.pending += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    sys.exit("the shell ended:\n" + text[-2000:])

    def ask(self, typed):
        """What a command prints, without its echo, and the prompt behind it."""
        os.write(self.master, typed.encode() + b"\n")
        text, prompt = self.until_prompt()
        # The echo ends with the first line break; it comes twice where the terminal was not yet the console's.
        lines = text.splitlines()[1:]
        while lines and lines[0].strip() == typed.strip():
            lines.pop(0)
        return lines, prompt

    def close(self):
        os.close(self.master)
        try:
            os.kill(self.pid, signal.SIGHUP)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)


def replay(steps, shell, strict):
    """The steps with what they printed. Ends the program at the first that is not as expected."""
    _, prompt = shell.until_prompt()
    done = []
    for wanted, typed, expected in steps:
        if prompt != wanted:
            sys.exit(f"'{typed}' is typed at '{wanted}', found '{prompt}'")
        last = time.monotonic() + PATIENCE_S
        while True:
            came, prompt = shell.ask(typed)
            same = normalised(came) == normalised(expected)
            if same or not LOOKS.search(typed) or time.monotonic() > last:
                break
            if not strict and time.monotonic() > last - PATIENCE_S + 15:
                break
            time.sleep(0.2)
        print(f"{'as expected' if same else 'DIFFERS'}: {typed}", flush=True)
        if strict and not same:
            sys.exit("expected:\n  " + "\n  ".join(normalised(expected)) + "\nfound:\n  " +
                     "\n  ".join(normalised(came)))
        done.append((wanted, typed, came))
    return done


def left_running(folder):
    """Processes that were started there and are still there."""
    left = []
    for each in os.listdir("/proc"):
        try:
            if each.isdigit() and os.readlink(f"/proc/{each}/cwd") == folder:
                left.append(open(f"/proc/{each}/cmdline").read().replace("\0", " "))
        except OSError:
            pass
    return left


def main():
    ordermoe, data, document = (os.path.abspath(each) for each in sys.argv[1:4])
    write = "--write" in sys.argv
    text = open(document).read()
    span, steps = transcript_of(text)
    folder = os.path.realpath(tempfile.mkdtemp())
    os.symlink(data, os.path.join(folder, "data"))
    environment = dict(os.environ, PATH=os.path.dirname(ordermoe) + ":" + os.environ["PATH"], PS1=SHELL, PS2="> ",
                       TERM="dumb", ORDERMOE_DATA=data, OPENBLAS_NUM_THREADS="1", BASH_SILENCE_DEPRECATION_WARNING="1")
    for name in ("ORDERMOE_LOG_LEVEL", "ORDERMOE_LOG_FORMAT", "ORDERMOE_LOG_FILE", "PROMPT_COMMAND"):
        environment.pop(name, None)
    shell = terminal(folder, environment)
    try:
        done = replay(steps, shell, strict=not write)
    except SystemExit:
        subprocess.run("tail -n 15 edge/nodes/*/log", shell=True, cwd=folder, check=False)
        raise
    finally:
        shell.close()
        left = left_running(folder)
        subprocess.run([ordermoe, "cluster", "down", "--dir", os.path.join(folder, "edge")],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        sys.exit("still there behind the last step: " + "; ".join(left))
    if write:
        lines = []
        for prompt, typed, came in done:
            lines.append("    " + prompt + typed)
            lines += ["    " + line.rstrip() if line.strip() else "" for line in came]
        open(document, "w").write(text[: span[0]] + "\n".join(lines) + "\n" + text[span[1]:])
    print("all steps are as the document has them" if not write else "the document has what came")


main()
