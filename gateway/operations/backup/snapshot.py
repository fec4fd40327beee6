"""The operation that a backup needs of whoever has the database open: a copy of it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from agent_core.operation import operation
from gateway.errors import StateUnusable
from gateway.operations.backup.contents import DATABASE_NAME
from gateway.operations.operation_context import OperationContext
from gateway.store.rollback_guard import Extent

_STAGES = "backup-"


@operation("backup snapshot", writes=True)
async def make_snapshot(context: OperationContext) -> dict[str, Any]:
    """
    Copy the database into a new folder under ``HOME/run``, which the caller removes again.

    Beside the copy lies ``facts.json``: schema, extent, and the length of each history at its moment.
    """
    store = context.store.snapshots
    home = Path(store.file).parent
    folder = home / "run" / f"{_STAGES}{secrets.token_hex(8)}"
    try:
        await anyio.to_thread.run_sync(_make_room, folder)
        snapshot = await store.snapshot(str(folder / DATABASE_NAME), str(home / "sessions"))
        extent = Extent.from_counts(snapshot.secret, snapshot.inbox, snapshot.outbox)
        facts = {
            "schema": snapshot.schema,
            "extent": asdict(extent),
            "running": context.running,
            "lengths": snapshot.lengths,
        }
        await anyio.to_thread.run_sync(_write, folder / "facts.json", facts)
    except OSError as error:
        await anyio.to_thread.run_sync(shutil.rmtree, folder, True)
        raise StateUnusable(f"the database cannot be copied: {error.strerror or error}") from error
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(shutil.rmtree, folder, True)
        raise
    return {"folder": str(folder)}


def _make_room(folder: Path) -> None:
    """Make the folder; what backups left that were killed long ago goes."""
    for old in folder.parent.glob(f"{_STAGES}*"):
        if time.time() - old.stat().st_mtime > 86_400.0:
            shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(mode=0o700)


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        json.dump(facts, file)
