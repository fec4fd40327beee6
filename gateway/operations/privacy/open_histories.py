"""Opens histories and memory for an export or an erasure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_core.storage.layout import Layout
from gateway.operations.privacy.personal_histories import StoredHistories
from gateway.store.opening import open_postgres
from gateway.store.place import QueuePlace


@contextmanager
def open_histories(layout: Layout, place: QueuePlace) -> Iterator[StoredHistories]:
    """Open the histories: files in the home, else tables. Raises StoreUnavailable, ConfigInvalid."""
    if isinstance(place, Path):
        from gateway.operations.privacy.histories_in_files import KeptFiles

        yield KeptFiles(layout)
        return
    with open_postgres():
        from gateway.store.postgres.histories.personal_lines import KeptTables
        from gateway.store.postgres.postgres_queue import HOME

        with KeptTables(place, HOME) as kept:
            yield kept
