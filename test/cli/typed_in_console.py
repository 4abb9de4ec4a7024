#!/usr/bin/env python3
"""What the operator's console makes of keys that somebody types on a terminal.

typed_in_console.py ORDERMOE FOLDER KEYS PATTERN...    types KEYS (Python's escapes, as \\t for the tab key) at the prompt,
                                                       and each regular expression has to appear, in this order
"""
import os
import pty
import re
import select
import signal
import sys
import time

ORDERMOE, FOLDER, KEYS, *PATTERNS = sys.argv[1:]
LONG_S = 60  # More than anything takes.


def read_until(terminal, seen, pattern):
    """What was read behind the first match."""
    end = time.monotonic() + LONG_S
    while not (found := re.search(pattern.encode(), seen, re.M)):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        if not ready:
            sys.exit(f"nothing like {pattern} within {LONG_S} s in {seen!r}")
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            sys.exit(f"the console ended; nothing like {pattern} in {seen!r}")
    return seen[found.end():]


child, terminal = pty.fork()
if child == 0:
    os.execvpe(ORDERMOE, [ORDERMOE, "admin", "--dir", FOLDER], dict(os.environ, TERM="xterm", COLUMNS="200"))
seen = read_until(terminal, b"", "ordermoe> ")
os.write(terminal, KEYS.encode().decode("unicode_escape").encode())
for pattern in PATTERNS:
    seen = read_until(terminal, seen, pattern)
os.write(terminal, b"\x15quit\n")  # What was typed and not entered goes.
signal.alarm(LONG_S)
os.waitpid(child, 0)
