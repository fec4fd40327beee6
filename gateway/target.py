"""
Where the owner is reached when nobody has asked: the owner's own direct conversation, kept in the store.

Never a group, never another person, and never simply "whoever wrote last": only a direct conversation in
which the owner's verified address has spoken. Matrix is preferred to mail, because a check-in is short.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import structlog

from agent_core.messages import Audience, InboundMessage, SessionKey
from gateway.access import LOCAL_CHANNELS, Role
from gateway.work.port import WorkStore

__all__ = ["OwnerTarget", "Target", "better"]

_WHERE = ("gateway", "owner", "direct_conversation")
_PREFERENCE = ("matrix", "email")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A conversation that can be written to."""

    channel: str
    account: str
    session: SessionKey


def better(new: Target, old: Target | None) -> bool:
    """Whether ``new`` shall replace ``old``: the same channel moves on, another one must be preferred."""
    if old is None or new.channel == old.channel:
        return new != old
    rank = {name: place for place, name in enumerate(_PREFERENCE)}
    return rank.get(new.channel, len(rank)) < rank.get(old.channel, len(rank))


class OwnerTarget:
    """Learns and remembers the owner's direct conversation."""

    def __init__(self, store: WorkStore) -> None:
        self._store = store
        self._known: Target | None = None
        self._loaded = False

    async def get(self) -> Target | None:
        """The conversation, or None if the owner has never written directly."""
        if not self._loaded:
            self._known = _parsed_or_none(await self._store.position(*_WHERE))
            self._loaded = True
        return self._known

    async def learn(self, message: InboundMessage, role: Role) -> None:
        """The owner may have written directly; remember where."""
        if role is not Role.OWNER or message.audience is not Audience.DIRECT or not message.sender.verified:
            return
        if message.channel in LOCAL_CHANNELS or message.kind == "tick":
            return
        seen = Target(message.channel, message.account, message.session)
        if not better(seen, await self.get()):
            return
        channel, account, name = _WHERE
        kept = {"channel": seen.channel, "account": seen.account, "session": str(seen.session)}
        await self._store.accept(channel, account, [], {name: json.dumps(kept)})
        self._known = seen


def _parsed_or_none(text: str | None) -> Target | None:
    """What `OwnerTarget.learn` wrote; the owner's next message mends anything else."""
    if not text:
        return None
    try:
        kept = json.loads(text)
        return Target(str(kept["channel"]), str(kept["account"]), SessionKey.parse(kept["session"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("target.unreadable", error=type(error).__name__)
        return None
