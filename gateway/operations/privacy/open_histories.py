"""Opens histories and memory for an export or an erasure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_core.storage.layout import Layout
from gateway.operations.privacy.histories import StoredHistories
from gateway.queue.opening import open_postgres
from gateway.queue.place import QueuePlace


@contextmanager
def open_histories(layout: Layout, place: QueuePlace) -> Iterator[StoredHistories]:
    """Open the histories: files in the home, else tables. Raises StoreUnavailable, ConfigInvalid."""
    if isinstance(place, Path):
        from gateway.operations.privacy.histories_in_files import KeptFiles  # noqa: PLC0415 - one of the two is loaded

        yield KeptFiles(layout)
        return
    with open_postgres():
        from gateway.queue.postgres.histories.personal import KeptTables  # noqa: PLC0415 - as above
        from gateway.queue.postgres.store import HOME  # noqa: PLC0415 - as above

        with KeptTables(place, HOME) as kept:
            yield kept
