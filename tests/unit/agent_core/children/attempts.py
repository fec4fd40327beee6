"""What attempts to break out have in common: the list of them, system calls by number, reading and writing."""

from __future__ import annotations

import ctypes
import os
import platform

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
ATTEMPTS = {}
NEEDS_ROOT, NO_CONTROL = set(), set()


def attempt(function=None, *, root=False, control=True):
    def take(given):
        ATTEMPTS[given.__name__] = given
        if root:
            NEEDS_ROOT.add(given.__name__)
        if not control:
            NO_CONTROL.add(given.__name__)
        return given

    return take if function is None else take(function)


def call(x86, arm, *arguments):
    """A system call by its number; OSError if it is refused."""
    given = [ctypes.c_void_p(each) if isinstance(each, int) else each for each in arguments]
    result = LIBC.syscall(x86 if X86 else arm, *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def reads(path):
    with open(path, "rb") as file:
        file.read(1)
    return True


def writes(path, flags=os.O_CREAT):
    os.close(os.open(path, os.O_WRONLY | flags, 0o600))
    return True
