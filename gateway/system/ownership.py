"""
Root at work in a home folder that belongs to somebody else: what it leaves there is its owner's. The home of
a system service belongs to a user that systemd makes up for the time of the service (DynamicUser=), so while
the service is stopped nobody but root can look into it, forget a person or mend what is damaged. A file that
root left behind would lock the service out; so whatever is root's afterwards is handed over. Before anything
is done the folder is searched for links: root follows none, because whoever has made it could lead anywhere.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gateway.errors import StateUnusable

SERVICES = Path("/var/lib/private")
"""Where systemd keeps the state of services whose user exists for the moment; nobody but root gets in."""

_MAX_NESTED = 100
_PEOPLE_S_OWN = "workspace"
"""What people put there may be links; root's commands replace files there and follow nothing."""


class Host:
    """The owner of a home."""

    def __init__(self, root: Path) -> None:
        self._root = root
        found = root.stat()
        self._uid, self._gid = found.st_uid, found.st_gid

    @property
    def is_foreign_root(self) -> bool:
        """Return True if this process is root and the home belongs to another user."""
        return os.geteuid() == 0 and self._uid != 0

    def refuse_links(self) -> None:
        """Refuse links that lead out of the home. Raises StateUnusable."""
        for folder, folders, files in os.walk(self._root):
            if Path(folder) == self._root and _PEOPLE_S_OWN in folders:
                folders.remove(_PEOPLE_S_OWN)
            for name in (*folders, *files):
                path = Path(folder, name)
                found = path.lstat()
                if stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1):
                    raise StateUnusable(
                        f"{path} is a link, which root does not follow in somebody else's folder; remove it",
                        home=str(self._root),
                    )

    def hand_over(self) -> None:
        """Give root's files in the home to its owner, except links and hard links; ignores failures."""
        deepest = str(self._root).count("/") + _MAX_NESTED
        for folder, folders, files, descriptor in os.fwalk(self._root, follow_symlinks=False):
            if folder.count("/") > deepest:  # nothing of root's; a command of the assistant may have made it
                folders.clear()
            for name in (*folders, *files):
                try:
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if found.st_uid == 0 and (found.st_nlink == 1 or stat.S_ISDIR(found.st_mode)):
                        os.chown(name, self._uid, self._gid, dir_fd=descriptor, follow_symlinks=False)
                except OSError:
                    continue
