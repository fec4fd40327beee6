"""What is known of a person in a home, for tests of erasure and export."""

from __future__ import annotations

from agent_core.storage.layout import Layout
from gateway.operations.privacy.inventory import Person, PersonFiles, find_files
from gateway.operations.privacy.personal_histories import open_histories
from gateway.store.place import QueuePlace


def find_person(layout: Layout, database: QueuePlace, person: Person) -> PersonFiles:
    """Look through all histories and the database."""
    with open_histories(layout, database) as kept:
        return find_files(kept, database, person)
