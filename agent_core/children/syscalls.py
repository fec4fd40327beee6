"""
System calls of the small interpreter, by their numbers, and files without `os` and `io` (Linux). Importing
`ctypes` takes 7 ms for each command, half of what the interpreter takes. The part of it used here is private
to CPython; where a later one lacks it, the sandbox is not proved, and there is no shell.
"""

from __future__ import annotations

import _ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SECCOMP, _FILTER = 22, 2
_VERSION_3 = (0x20080522).to_bytes(4, "little") + bytes(4)


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001 - what `ctypes` itself is made of
    _type_ = "i"


class _Short(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "H"


class _Bytes(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "z"


class _Word(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "I"


class _Capabilities(_ctypes.Array):  # type: ignore[type-arg]
    _type_ = _Word
    _length_ = 6


class _Program(_ctypes.Structure):
    _fields_ = (("lines", _Short), ("at", _Bytes))


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
syscall = _Function(_ctypes.dlsym(_library, "syscall"))
"""The call of that number; bytes are given as a pointer to them. -1 if it fails."""
prctl = _Function(_ctypes.dlsym(_library, "prctl"))
"""See prctl(2)."""


def check_result(result: int, what: str) -> int:
    """The result of a call. Raises `OSError`: it has failed."""
    if result < 0:
        raise OSError(_ctypes.get_errno(), what)
    return result


def held_capabilities(capget: int) -> bool:
    """Return True if this process has any capability."""
    held = _Capabilities()
    check_result(syscall(capget, _VERSION_3, held), "capget")
    return any(word for word in held)


def no_capabilities(capset: int) -> None:
    """Give all up."""
    check_result(syscall(capset, _VERSION_3, bytes(24)), "capset")


def filter_calls(program: bytes) -> None:
    """Filter the system calls of this process from now on, see seccomp(2)."""
    whole: Any = _Program(len(program) // 8, program)
    check_result(prctl(_SECCOMP, _FILTER, _ctypes.byref(whole), 0, 0), "seccomp")


if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`

_PIECE = 65536


def write_file(path: str, text: str, flags: int = 0) -> None:
    """Write to a file that is there, or is made if ``flags`` say so."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        write_all(handle, text.encode("utf-8", "surrogateescape"))
    finally:
        os.close(handle)


def write_all(handle: int, content: bytes) -> None:
    """Write as often as it takes."""
    while content:
        content = content[os.write(handle, content) :]


def read_all(handle: int) -> bytes:
    """Everything until the end of the file."""
    pieces = []
    while piece := os.read(handle, _PIECE):
        pieces.append(piece)
    return b"".join(pieces)


def read_frame(handle: int) -> bytes:
    """One order of which the length comes first; the file goes on."""
    content = b""
    while len(content) < 8 or len(content) < 8 + int.from_bytes(content[:8], "little"):
        piece = os.read(handle, _PIECE)
        if not piece:
            raise EOFError("no order")
        content += piece
    return content[8:]
