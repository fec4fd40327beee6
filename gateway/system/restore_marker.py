"""
The note in a home that a restore has begun to move files and has not ended: nothing works on half a home. The
note (``.restore-unfinished.json``) is durable before the first file is moved and removed after the last. By
then everything that the restore brings lies unpacked and synced beside the home's content. So finishing it
needs neither the backup nor a passphrase: `gateway.operations.backup.restore.finish_restore` moves what is
left.
"""

from __future__ import annotations

import errno
import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.errors import GatewayError

NOTE = ".restore-unfinished.json"
_STAGE = re.compile(r"\.restore-[0-9]{1,20}")
_ASIDE = re.compile(r"before-restore-[0-9TZ-]{1,40}")


class RestoreMarker(GatewayError):
    """A restore into this home was interrupted."""

    exit_code = 78  # EX_CONFIG: a service manager is told not to restart on it


@dataclass(frozen=True, slots=True)
class UnfinishedRestore:
    """The names in the home that a restore moves: in from ``stage``, the old ones to ``aside``."""

    backup: str
    stage: str
    aside: str
    put_aside: tuple[str, ...]
    brings: tuple[str, ...]
    told: dict[str, Any] = field(default_factory=dict)


def read_unfinished_restore(root: Path) -> UnfinishedRestore | None:
    """Return the interrupted restore of a home, or None. Raises RestoreMarker (unreadable), OSError."""
    try:
        raw = (root / NOTE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # nothing can be there
            raise
        raise _unusable(root, error.strerror or str(error)) from error
    try:
        value = json.loads(raw)
        found = UnfinishedRestore(
            value["backup"],
            value["stage"],
            value["aside"],
            tuple(value["put_aside"]),
            tuple(value["brings"]),
            dict(value["told"]),
        )
        sound = (
            isinstance(found.backup, str)
            and _STAGE.fullmatch(found.stage) is not None
            and _ASIDE.fullmatch(found.aside) is not None
            and all(_is_name(name) for name in (*found.put_aside, *found.brings))
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unusable(root, "it is damaged") from error
    if not sound:
        raise _unusable(root, "it names files outside of the home")
    return found


def check_no_restore_pending(root: Path) -> None:
    """Refuse a home with an unfinished restore. Raises RestoreMarker with the command."""
    if read_unfinished_restore(root) is not None:
        raise RestoreMarker(
            f"a restore into {root} was interrupted, so a part of its content is missing; finish it with: "
            f"squidbot restore --finish --home {shlex.quote(str(root))}"
        )


def _is_name(name: object) -> bool:
    return (
        isinstance(name, str) and name not in ("", ".", "..", NOTE) and "/" not in name and "\0" not in name
    )


def _unusable(root: Path, why: str) -> RestoreMarker:
    return RestoreMarker(
        f"a restore into {root} was interrupted, and its note {root / NOTE} cannot be used ({why}): move "
        "that file away and restore the backup again with --replace"
    )
