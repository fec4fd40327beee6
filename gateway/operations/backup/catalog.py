"""
Knows which backups were made of this home: what `squidbot forget` erases here is still in them.

One line per backup in ``state/backups.jsonl``. It is a hint: a backup may have been moved or copied.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

_NAME = "backups.jsonl"
_MOST = 1000


def note_backup(root: Path, path: Path, *, now: datetime) -> None:
    """Note a backup, if possible; entries of backups that are gone are removed."""
    lines = [(at, old) for at, old in known_backups(root) if old != path]
    lines.append((now.isoformat(), path))
    place = root / "state" / _NAME
    new = place.with_name(f"{_NAME}.{os.getpid()}.new")
    with suppress(OSError):
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            owner = root.stat()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.writelines(json.dumps({"at": at, "path": str(old)}) + "\n" for at, old in lines[-_MOST:])
        new.replace(place)


def known_backups(root: Path) -> list[tuple[str, Path]]:
    """The existing backups of this home with their times, oldest first."""
    found: list[tuple[str, Path]] = []
    with suppress(OSError):
        for line in (
            (root / "state" / _NAME).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        ):
            with suppress(ValueError, KeyError, TypeError):
                value = json.loads(line)
                path = Path(value["path"])
                if path.exists():
                    found.append((str(value["at"]), path))
    return found
