"""The addresses of Matrix."""

from __future__ import annotations

import re

from channels.plugin import AddressRules

_USER_ID = re.compile(r"@[^:\s\x00-\x1f]+:[^\s\x00-\x1f]+")


class MatrixAddresses(AddressRules):
    """Matrix ids. They are compared as they are, because old accounts have case-sensitive names."""

    example = "@you:example.org"

    def parse(self, text: str) -> str | None:
        """``@local:server`` as it is."""
        return text if _USER_ID.fullmatch(text) else None

    def server(self, address: str) -> str:
        """The homeserver."""
        return address.partition(":")[2]

    def server_of_entry(self, entry: str) -> str | None:
        """The homeserver of ``@*:server``."""
        return entry[3:] if entry.startswith("@*:") and "*" not in entry[3:] else None

    def is_room(self, place: str) -> bool:
        """``!…``; ids of rooms of version 12 and later name no server."""
        return len(place) > 1 and place.startswith("!")

    def is_conversation(self, place: str) -> bool:
        """Return True for a person, a room, or the alias of a room."""
        return super().is_conversation(place) or (place.startswith("#") and ":" in place)
