"""The beginning of a script for a process that dies by SIGKILL before its n-th write; see `KILLED_AT_A_WRITE`."""

from __future__ import annotations

KILLED_AT_A_WRITE = """
import os, sys
left = int(sys.argv.pop(1))
NAMES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.copyfile"}
count = 0
def hook(event, args):
    global count
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if event in NAMES or writes:
        count += 1
        if count > left:
            os.kill(os.getpid(), 9)
sys.dont_write_bytecode = True
"""
"""
Takes the number of writes that it survives from the arguments, and counts from ``sys.addaudithook(hook)`` on
in ``count``: each change of a name, and each time that a file is opened for writing.
"""
