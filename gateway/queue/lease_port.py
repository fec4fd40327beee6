"""The part of the durable queue's contract about who may act: leases with fences."""

from __future__ import annotations

from typing import Protocol

__all__ = ["LeasePort"]


class LeasePort(Protocol):
    """Named rights that one holder has at a time, for as long as it renews them."""

    async def lease(self, name: str, *, holder: str, ttl_s: float) -> int | None:
        """Get or renew a lease: its fence (it grows with each new holder), or None if it is taken."""
        ...

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early; nothing happens if it is not held."""
        ...
