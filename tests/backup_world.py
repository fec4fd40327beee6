"""Backups of a filled home, and those that somebody else has made."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from datetime import UTC, datetime

from gateway.operations.backup.backup_settings import kept_config
from gateway.operations.backup.contents import BackupSelection
from gateway.operations.backup.create import BackupSource, make_backup
from gateway.operations.operation_context import OperationContext
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from tests.clock import EPOCH

NOW = datetime(2026, 1, 2, tzinfo=UTC)


async def source_of(filled, *, with_secrets=False):
    """A backup of a home that no daemon works on."""
    kept = kept_config(filled.home.root, filled.home.config_file, with_secrets=with_secrets)
    folder = None

    async def snapshot():
        async with await SqliteQueue.open(filled.home.database, clock=filled.clock) as store:
            return await OperationContext(store, None).call("backup_snapshot", {})

    folder = await snapshot()
    choice = BackupSelection(filled.home.root, kept.workspace, with_secrets=with_secrets)
    return BackupSource(choice, lambda: folder, kept.text, {"notes": list(kept.notes)})


async def made(filled, tmp_path, name="b.tar.gz", **options):
    source = await source_of(filled, **options.pop("choose", {}))
    return make_backup(tmp_path / name, source, now=NOW, **options)


def forged(path, *members, manifest=None):
    """A backup that somebody else has made."""
    head = {"format": 1, "version": "9", "made_at": EPOCH.isoformat()}
    listed = {}
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:

        def add(name, data, **more):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
            if name.startswith("home/"):
                listed[name[5:]] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

        add("squidbot-backup.json", json.dumps(head).encode())
        for name, data, more in members:
            add(name, data, **more)
        add("manifest.json", json.dumps(manifest or {"format": 1, "files": listed}).encode())
    return path
