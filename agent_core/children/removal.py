"""
Removing a folder that a program has filled, whatever it has done to it (Linux). A program can nest folders so
deep that no path leads to the last one, and deeper than there are descriptors or frames of Python. So each
folder that is found is first moved up to the top. No link is followed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # `child` loads this, and not what `os` loads

_HERE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(folder: str) -> None:
    """Remove it with everything in it, whatever rights were taken from it; what cannot be removed stays."""
    try:
        os.chmod(folder, 0o700)
        top = os.open(folder, _HERE)
    except OSError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    try:
        os.rmdir(folder)
    except OSError:
        return


def _empty(top: int) -> None:
    mark, count = os.urandom(8).hex(), 0
    waiting = _emptied(top)
    while waiting:
        name = waiting.pop()
        try:
            inner = os.open(name, _HERE, dir_fd=top)
        except OSError:
            continue
        try:
            for below in _emptied(inner):
                count += 1
                moved = f"{mark}-{count}"
                try:
                    os.rename(below, moved, src_dir_fd=inner, dst_dir_fd=top)
                except OSError:
                    continue
                waiting.append(moved)
        finally:
            os.close(inner)
        try:
            os.rmdir(name, dir_fd=top)
        except OSError:
            continue


def _emptied(folder: int) -> list[str]:
    """Remove the files of an open folder; the names of its folders, which can be entered and moved then."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.name, 0o700, dir_fd=folder)
                        found.append(entry.name)
                    else:
                        os.unlink(entry.name, dir_fd=folder)
                except OSError:
                    continue
    except OSError:
        return found
    return found
