"""What is known of a person in a home, for tests of erasure and export."""

from __future__ import annotations

from agent_core.storage.layout import Layout
from gateway.operations.privacy.inventory import Person, PersonFiles, find_kept
from gateway.operations.privacy.open_histories import kept_in
from gateway.queue.place import QueuePlace


def find_person(layout: Layout, database: QueuePlace, person: Person) -> PersonFiles:
    """Look through all histories and the database."""
    with kept_in(layout, database) as kept:
        return find_kept(kept, database, person)
