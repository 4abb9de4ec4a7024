#!/usr/bin/env python3
"""What zsh makes of a line that somebody types and completes with the tab key, on a terminal of its own.

typed_in_zsh.py FOLDER_OF_FUNCTIONS LINE     prints the line as it is then
"""
import os
import pty
import re
import select
import sys
import time

FUNCTIONS, LINE = sys.argv[1:]
LONG_S = 60  # More than anything takes.
# ^Xs prints the line and drops it.
SETUP = (f"fpath=({FUNCTIONS} $fpath); autoload -U compinit; compinit -D -u; setopt no_auto_menu; "
         r"""show() { print -r -- "<""<$BUFFER>"">"; BUFFER=; }; zle -N show; bindkey '^Xs' show; print RE""ADY""" "\n")


def read_until(terminal, pattern):
    seen, end = b"", time.monotonic() + LONG_S
    while not (found := re.search(pattern, seen, re.S)):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        if not ready:
            sys.exit(f"zsh: nothing like {pattern} within {LONG_S} s in {seen!r}")
        seen += os.read(terminal, 65536)
    return found


child, terminal = pty.fork()
if child == 0:
    os.execvpe("zsh", ["zsh", "-f", "-i"], dict(os.environ, TERM="dumb", PS1="", COLUMNS="1000"))
os.write(terminal, SETUP.encode())
read_until(terminal, b"READY")
os.write(terminal, (LINE + "\t\x18s").encode())
print(read_until(terminal, b"<<(.*?)>>").group(1).decode())
os.close(terminal)
os.waitpid(child, 0)
