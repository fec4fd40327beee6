"""What the gateway itself remembers over restarts."""

from __future__ import annotations

from typing import Protocol


class StateStore(Protocol):
    """A text for each topic."""

    async def read(self, topic: str) -> str | None:
        """What was written last, or None."""
        ...

    async def read_all(self, *topics: str) -> list[str | None]:
        """As `read`, of several topics in one go."""
        ...

    async def write(self, topic: str, value: str) -> None:
        """Remember a text durably, in the place of what was remembered of this topic."""
        ...

    async def swap(self, topic: str, old: str | None, new: str) -> bool:
        """As `write`, if what is remembered is still ``old``; False: another process has written."""
        ...
