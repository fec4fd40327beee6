"""What a store can say no with: not now, not at all, or not any more."""

from __future__ import annotations

from typing import Any


class StoreUnavailable(Exception):
    """My disk accepts no writes at the moment; nothing is lost, I will try again."""

    temporary = True

    def __init__(self, detail: str = "", /, **fields: Any) -> None:
        self.public = (type(self).__doc__ or "").strip()
        self.fields = fields
        super().__init__(detail or self.public)


class Fenced(StoreUnavailable):
    """Another process has taken over my work and continues it."""


class StoreUnusable(Exception):
    """My database cannot be used; my operator must check it."""

    temporary = False

    def __init__(self, detail: str = "", /, **fields: Any) -> None:
        self.public = (StoreUnusable.__doc__ or "").strip()
        self.fields = fields
        super().__init__(detail or self.public)


class StoreCorrupt(StoreUnusable):
    """The database is damaged, or is no database of ours. Raised when it is opened; it was not changed."""


class StoreTooNew(StoreUnusable):
    """The database was written by a later version. Raised when it is opened; it was not changed."""


class LostTurn(Exception):
    """This turn was claimed again by somebody else; what was done for it must be thrown away."""

    temporary = False
    public = "Somebody else is answering this."


class TooManyJobs(Exception):
    """There are as many jobs as one person may have."""

    temporary = False

    def __init__(self, limit: int) -> None:
        self.public = f"You have {limit} jobs already, which is the limit; remove one first."
        self.fields = {"limit": limit}
        super().__init__(self.public)
