"""A folder for attachments outside of the home that can be away, and a store over it that works on virtual time."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from channels.attachments import AttachmentStore, LocalFiles


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


def store_over(storage: AwayFolder, home: Path) -> AttachmentStore:
    """To be called in the event loop."""
    store = AttachmentStore(home, storage=storage)
    store._threads = anyio.to_thread.current_default_thread_limiter()  # virtual time waits for those alone
    return store
