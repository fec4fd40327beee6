"""A copy of the home for a newer version to start on: all but attachments, logs, caches and logins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.errors import StateUnusable
from gateway.operations.backup.contents import DATABASE_NAME, BackupPart, BackupSelection
from gateway.system.home import open_home


def copy_home(
    root: Path, workspace: Path, target: Path, snapshot: Callable[[], dict[str, Any]]
) -> tuple[Path, int]:
    """
    Copy a home, whether its daemon runs or not; return the copy and how many files it has.

    Args:
        target: The folder of the copy; it must not exist.
        snapshot: Copies the database into a new folder, see `gateway.operations.backup.snapshot`.

    Raises:
        StateUnusable: It cannot be copied, for example for want of room.
    """
    choice, count = BackupSelection(root, workspace), 1
    try:
        open_home(target)
        staged = Path(snapshot()["folder"])
        try:
            lengths = json.loads((staged / "facts.json").read_text(encoding="ascii"))["lengths"]
            shutil.copyfile(staged / DATABASE_NAME, target / DATABASE_NAME)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        for part in BackupPart:
            for found in choice.files(part, lengths):
                if not found.name.startswith("attachments/"):
                    _copy(found.path, target / found.name, found.limit)
                    count += 1
    except OSError as error:
        raise StateUnusable(f"the home cannot be copied to {target}: {error.strerror or error}") from error
    return target, count


def _copy(path: Path, place: Path, limit: int | None) -> None:
    """Copy a file, or its first ``limit`` bytes; one that is gone meanwhile is left out."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("rb") as source, place.open("xb") as copy:
            if limit is None:
                shutil.copyfileobj(source, copy)
            else:
                copy.write(source.read(limit))
    except FileNotFoundError:
        return
