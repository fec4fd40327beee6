"""Storages of attachments outside of the home that can be away, and a store over one that works on virtual time."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import obstore

from channels.attachments import AttachmentStore, LocalFiles
from channels.attachments.object_storage import ObjectFiles
from tests.doubles.object_server import BUCKET, KEYS, Gate


class AwayFolder(LocalFiles):
    """While it ``is_unreachable``, the folder is not there, as if nothing was mounted."""

    def __init__(self, root: Path) -> None:
        (root / "attachments").mkdir(parents=True)
        super().__init__(root, elsewhere=True)

    @property
    def is_unreachable(self) -> bool:
        return not self._folder.exists()

    @is_unreachable.setter
    def is_unreachable(self, away: bool) -> None:
        unmounted = self._root / "unmounted"
        if away != self.is_unreachable:
            (self._folder if away else unmounted).rename(unmounted if away else self._folder)

    def spoil(self, path: str, content: bytes) -> None:
        """Put something else in the place of a content."""
        (self._root / path).write_bytes(content)


class AwayObjects(ObjectFiles):
    """While it ``is_unreachable``, the server hangs up."""

    def __init__(self, gate: Gate, prefix: str) -> None:
        super().__init__(BUCKET, prefix, options={"endpoint": gate.url, **KEYS}, limit_s=3)
        self._gate = gate

    @property
    def is_unreachable(self) -> bool:
        return self._gate.way == "away"

    @is_unreachable.setter
    def is_unreachable(self, away: bool) -> None:
        self._gate.way = "away" if away else "open"

    def spoil(self, path: str, content: bytes) -> None:
        """Put something else in the place of a content."""
        obstore.put(self._client(), path, content)


def store_over(storage: AwayFolder, home: Path) -> AttachmentStore:
    """To be called in the event loop."""
    store = AttachmentStore(home, storage=storage)
    store._threads = anyio.to_thread.current_default_thread_limiter()  # virtual time waits for those alone
    return store
