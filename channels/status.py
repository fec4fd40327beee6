"""The state of a channel, as its supervisor sees it and as operators read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from channels.base import LinkState


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """
    The state of a channel.

    ``since`` is when the state began, or the link was lost, ``detail`` a sentence for the operator,
    ``last_error`` the newest error (kept while the link is up again, with its time: then it is history),
    ``retry_at`` when the next try is due, ``heard_at`` when its server has last answered or called, ``facts``
    whatever the channel tells about itself.
    """

    name: str
    account: str
    state: LinkState
    since: datetime
    detail: str = ""
    restarts: int = 0
    last_error: str = ""
    last_error_at: datetime | None = None
    retry_at: datetime | None = None
    heard_at: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def can_send(self) -> bool:
        """Return True if the channel accepts messages to send."""
        return self.state in (LinkState.UP, LinkState.CATCHING_UP)

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON can hold it."""
        return {
            "name": self.name,
            "account": self.account,
            "state": self.state.value,
            "since": self.since.isoformat(),
            "detail": self.detail,
            "restarts": self.restarts,
            "last_error": self.last_error,
            "last_error_at": self.last_error_at.isoformat() if self.last_error_at else None,
            "retry_at": self.retry_at.isoformat() if self.retry_at else None,
            "heard_at": self.heard_at.isoformat() if self.heard_at else None,
            "facts": dict(self.facts),
        }
