"""The errors of the stores: temporary (`StoreUnavailable`), permanent (`StoreUnusable`), or a lost claim."""

from __future__ import annotations

from typing import Any

from agent_core.language import _


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
    """The database is damaged or is not a squidbot database. Raised on opening; nothing was changed."""


class StoreTooNew(StoreUnusable):
    """A later version wrote the database. Raised on opening; nothing was changed."""


class LostTurn(Exception):
    """The claim was superseded: somebody else claimed this turn, and the caller must discard its work."""

    temporary = False
    public = "Somebody else is answering this."


class TooManyJobs(Exception):
    """The person already has the maximum number of jobs."""

    temporary = False

    def __init__(self, limit: int) -> None:
        self.public = _("You have {n} jobs already, which is the limit; remove one first.", n=limit)
        self.fields = {"limit": limit}
        super().__init__(self.public)
