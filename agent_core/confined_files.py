"""
Opens files below a folder part by part, so that no link leads out of it, whoever changes the folder
meanwhile. Paths are never compared as text: a folder is opened, and each further part is opened in the one
before it, with ``O_NOFOLLOW``. ``openat2`` would do the same in one call, but it is ENOSYS in a systemd unit
with ``RestrictSUIDSGID``. A folder that must stay out of reach is known by its device and inode, which
another path to it, or a bind mount, does not change. Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Identity = tuple[int, int]
"""Device and inode: the same through every path."""
DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def identity_of(found: os.stat_result) -> Identity:
    """The identity of a file, whatever its name."""
    return found.st_dev, found.st_ino


def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises ValueError if it leaves the folder or is invalid."""
    parts = tuple(path.split("/"))
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError("it must be the path of a file inside the folder, without '..'")
    try:
        longest = max(len(os.fsencode(part)) for part in parts)
    except UnicodeEncodeError as error:
        raise ValueError("it contains half a character") from error
    if longest > 255 or len(parts) > 64:
        raise ValueError("it is too long")
    return parts


@contextmanager
def folder_below(
    root: Path,
    parts: Sequence[str],
    *,
    forbidden: Container[Identity] = (),
    make: bool = False,
    made: list[str] | None = None,
) -> Iterator[int]:
    """
    Open the folder ``parts`` below ``root`` as a ``dir_fd``. The root itself may be a link.

    ``make`` creates missing folders for this user only and lists them in ``made``. Raises LookupError for a
    missing folder, ValueError for a link, a non-folder or one of ``forbidden``.
    """
    here = _open_root(root)
    try:
        _refuse(here, forbidden)
        for part in parts:
            following = _open_folder(part, here, make=make, made=made)
            os.close(here)
            here = following
            _refuse(here, forbidden)
        yield here
    finally:
        os.close(here)


def open_file(name: str, folder: int) -> int:
    """Open a regular file of an open folder without blocking. Raises LookupError, or ValueError."""
    handle = open_part(name, READ, folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a file")
    return handle


def open_below(folder: Path, path: str, *, forbidden: Container[Identity] = ()) -> int:
    """Open the regular file ``path`` below ``folder``; see `folder_below` and `open_file`."""
    parts = parts_of(path)
    with folder_below(folder, parts[:-1], forbidden=forbidden) as here:
        return open_file(parts[-1], here)


def open_part(name: str, flags: int, folder: int) -> int:
    """`os.open` in an open folder, with errors that can be shown."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise LookupError("there is no such file") from error
    except OSError as error:
        raise ValueError(f"it cannot be opened: {error.strerror}; links are not followed") from error


def _open_root(root: Path) -> int:
    try:
        return os.open(root, DIRECTORY)
    except FileNotFoundError as error:
        raise LookupError("there is no such file") from error


def _open_folder(name: str, folder: int, *, make: bool, made: list[str] | None) -> int:
    flags = DIRECTORY | os.O_NOFOLLOW
    try:
        return open_part(name, flags, folder)
    except LookupError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
        if made is not None:
            made.append(name)
    except FileExistsError:
        pass  # somebody else was quicker: it is opened like any other
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise ValueError("it cannot be created; links are not followed") from error
        raise
    return open_part(name, flags, folder)


def _refuse(handle: int, forbidden: Container[Identity]) -> None:
    if identity_of(os.fstat(handle)) in forbidden:
        raise ValueError("it is in a place that is kept private")
