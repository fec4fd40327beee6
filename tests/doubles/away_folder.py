"""A shared folder for attachments that can be away, and a store over it that works on virtual time."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from channels.attachments import AttachmentStore, LocalFiles, StorageUnreachable


class AwayFolder(LocalFiles):
    """While it ``is_unreachable`` it says so; ``asked`` counts how often somebody asked whether it is there."""

    def __init__(self, root: Path) -> None:
        (root / "attachments").mkdir(parents=True)
        super().__init__(root, is_shared=True)
        self.is_unreachable = False
        self.asked = 0

    def prepare(self) -> None:
        self.asked += 1
        if self.is_unreachable:
            raise StorageUnreachable("gone")
        super().prepare()

    def save(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        if self.is_unreachable:
            raise StorageUnreachable("gone")
        return super().save(handle, temporary, path, size)


def store_over(storage: AwayFolder, home: Path) -> AttachmentStore:
    """To be called in the event loop."""
    store = AttachmentStore(home, storage=storage)
    store._threads = anyio.to_thread.current_default_thread_limiter()  # virtual time waits for those alone
    return store
