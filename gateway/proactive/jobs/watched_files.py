"""
Reads the files and folders that a watch looks at, by the rules that hold for the owner's file tools: no link
is followed, and what is private stays out of reach.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from agent_core.errors import ToolFailed
from gateway.proactive.jobs.watched_content import MAX_ITEMS, Content, read_items

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles
    from agent_core.tools.files.roots import RootedPath


def read_watched_file(files: JournaledFiles, path: str, part: str) -> Content:
    """
    Return the content of a file, or the names in a folder (with ``part`` those with these words).

    Raises ToolError, or ValueError if it cannot be compared. Blocks.
    """
    place = files.roots.place(path)
    try:
        with files.roots.folder(place) as above:
            mode = os.stat(place.name, dir_fd=above, follow_symlinks=False).st_mode if place.parts else None
        if mode is None or stat.S_ISDIR(mode):
            return _names_in(files, place, part)
        found = files.read_state(place)
    except OSError as error:
        raise ToolFailed(f"{place.label!r} cannot be read: {error.strerror}.") from error
    except LookupError:
        found = None
    if found is None:
        raise ToolFailed(f"there is no {place.label!r}.")
    return read_items(found.content, "", address=place.label, part=part, grows=True)


def _names_in(files: JournaledFiles, place: RootedPath, part: str) -> Content:
    with files.roots.inside(place) as folder:
        handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(handle) as entries:
                names = {f"{one.name}{'/' if one.is_dir(follow_symlinks=False) else ''}" for one in entries}
        finally:
            os.close(handle)
    wanted = sorted(name for name in names if not name.startswith(".") and part.casefold() in name.casefold())
    if len(wanted) > MAX_ITEMS:
        raise ValueError(f"the folder has more than {MAX_ITEMS} files")
    return Content({name: name for name in wanted}, tells_loss=False)
