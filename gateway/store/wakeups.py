"""
Signals that the queue fires after a commit, for the parts that wait for what the commit changed. `Wakeups` is
created before everything else and passed to the queue, which fires its signals by itself. So writers notify
nobody, and waiters subscribe once and need not poll. A signal only shortens a wait: it may be spurious, and
it is lost when the process dies. The truth is in the queue, and each waiter queries it at the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from agent_core.errors import ModelError
from agent_core.messages import SessionKey
from channels.status import ChannelStatus
from gateway.store.model import StoppedTurn

RunSession = Callable[[SessionKey], Awaitable[float | None]]
"""
Works on one session; at most one task per session calls it at a time. Returns the seconds until its next
call; None: call again when the session has work.
"""
_Told = TypeVar("_Told")
_log = structlog.get_logger(__name__)


class Signal(Generic[_Told]):
    """Calls its subscribers, on the event loop and in the order of their subscription."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[_Told], object]] = []

    def connect(self, subscriber: Callable[[_Told], object]) -> None:
        """Subscribe: the signal calls this each time from now on. It must return at once."""
        self._subscribers.append(subscriber)

    def fire(self, told: _Told) -> None:
        """Call all subscribers. If one raises, the error is logged and the others are still called."""
        for subscriber in self._subscribers:
            try:
                subscriber(told)
            except Exception:  # noqa: BLE001 - a failing subscriber must not stop the others
                _log.exception("signal.failed")


@dataclass(frozen=True, slots=True)
class Work:
    """
    A session has work to do in ``after_s`` seconds.

    ``kind`` is as in `gateway.store.model.Pending`; ``alone`` is a command, ``note`` is for the history only.
    """

    session: SessionKey
    after_s: float
    channel: str
    sender: str
    verified: bool
    kind: str

    @property
    def is_quick(self) -> bool:
        """Return True if the work needs no model and so need not wait for a running turn."""
        return self.kind in ("alone", "note", "reaction")


@dataclass(frozen=True, slots=True)
class Alert:
    """
    Something needs the owner's attention; sent at most hourly per ``about``.

    ``once``: sent a single time, over restarts, until a different alert about the subject is sent.
    """

    about: str
    text: str
    once: str = ""

    @property
    def key(self) -> tuple[str, str] | None:
        """The key of `OutboxStore.post`; None: it may be sent again."""
        return (f"alert {self.about}", self.once) if self.once else None


class Wakeups:
    """The signals of one gateway; only the queue fires those about its rows."""

    def __init__(self) -> None:
        self.session = Signal[Work]()
        """
        A session has work to do. A turn that was given back at once (`TurnStore.release`) fires nothing.
        """
        self.stopped = Signal[StoppedTurn]()
        """A running turn has lost its messages."""
        self.outbox = Signal[str]()
        """The channel of this name may have something to send."""
        self.recovery = Signal[ModelError]()
        """A model that had failed with this error has answered."""
        self.drafts = Signal[str]()
        """The outbox of this channel has a draft that waits for a person's approval."""
        self.history = Signal[SessionKey]()
        """The journal has lines for the history of this session."""
        self.usage = Signal[str]()
        """Something was spent on this day."""
        self.decided = Signal[str]()
        """The question of this name is decided."""
        self.jobs = Signal[str]()
        """The job of this id is due sooner than was known."""
        self.link = Signal[str]()
        """The link of this channel has come up, and nothing waits for it any more."""
        self.channel = Signal[ChannelStatus]()
        """The state of a channel's link has changed."""
        self.attached = Signal[SessionKey]()
        """A terminal was attached to this session."""
        self.owner = Signal[str]()
        """The owner's conversation has changed; the value is its channel, or empty."""
        self.alert = Signal[Alert]()
        """Something needs the owner's attention."""

    def changes(self) -> list[Signal[Any]]:
        """The signals of what a person may see of the work."""
        return [
            *(self.session, self.stopped, self.outbox, self.drafts, self.decided, self.history, self.jobs),
            self.channel,
        ]
