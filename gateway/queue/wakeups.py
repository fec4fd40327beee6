"""
Signals that the queue fires after a commit, for whoever waits for what the commit changed.

`Wakeups` is made before everything else and given to the queue, which fires its signals by itself. So
writers notify nobody, and waiters subscribe once and need not poll. A signal only shortens a wait: it may be
spurious, and it is lost when the process dies. The queue itself holds the truth and is asked at the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from agent_core.messages import SessionKey
from channels.status import ChannelStatus
from gateway.queue.model import Stopped

RunSession = Callable[[SessionKey], Awaitable[float | None]]
"""
Works on one session, called by at most one task per session at a time. Returns in how many seconds it is to
be called again; None: when the session has work again.
"""
_Told = TypeVar("_Told")
_log = structlog.get_logger(__name__)


class Signal(Generic[_Told]):
    """Calls its subscribers, on the event loop and in the order in which they subscribed."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[_Told], object]] = []

    def connect(self, subscriber: Callable[[_Told], object]) -> None:
        """Call this from now on, each time. It must return at once."""
        self._subscribers.append(subscriber)

    def fire(self, told: _Told) -> None:
        """Call all subscribers. One that raises is logged and keeps no other from it."""
        for subscriber in self._subscribers:
            try:
                subscriber(told)
            except Exception:  # noqa: BLE001 - a defect of one must not cost another its wake-up
                _log.exception("signal.failed")


@dataclass(frozen=True, slots=True)
class Work:
    """
    A session has something to do.

    Args:
        after_s: In how many seconds it is due; 0.0: now.
        channel, sender, verified: By which channel it came, from which address, and whether that is proven.
        kind: Of the message, as `gateway.queue.model.Pending` came with it; ``alone`` is a command.
        new: Whether it was accepted just now.
    """

    session: SessionKey
    after_s: float
    channel: str
    sender: str
    verified: bool
    kind: str
    new: bool

    @property
    def overtakes(self) -> bool:
        """Whether it waits for no turn that runs: it came just now and needs no model."""
        return self.new and self.kind in ("alone", "reaction")


@dataclass(frozen=True, slots=True)
class Alert:
    """
    Something needs the owner.

    Args:
        about: What it is about; the same thing is told once an hour at most.
        text: A sentence or two, without secrets.
        once: If it is given, this is told once, however often and after however many restarts it is fired,
            until something else is told about the same.
    """

    about: str
    text: str
    once: str = ""


class Wakeups:
    """
    The signals of one gateway.

    The queue alone fires those about its rows. The others come from parts that do not know their subscribers.
    """

    def __init__(self) -> None:
        self.session = Signal[Work]()
        """A session has something to do. What was given back at once (`TurnStore.release`) is not told."""
        self.stopped = Signal[Stopped]()
        """A turn that runs has lost its messages."""
        self.outbox = Signal[str]()
        """The channel of this name may have something to send."""
        self.drafts = Signal[str]()
        """In the outbox of this channel something is held until a person approves it."""
        self.history = Signal[SessionKey]()
        """Lines for the history of this session are in the journal."""
        self.usage = Signal[str]()
        """Something was spent on this day."""
        self.decided = Signal[str]()
        """The question of this name is decided."""
        self.jobs = Signal[str]()
        """The job of this id is due sooner than was known."""
        self.link = Signal[str]()
        """The link of this channel has come up, and nothing waits for that any more."""
        self.channel = Signal[ChannelStatus]()
        """The link of a channel is another one than before."""
        self.attached = Signal[SessionKey]()
        """A terminal was attached to this session."""
        self.owner = Signal[str]()
        """The owner's conversation is another one than before; on which channel, or none."""
        self.alert = Signal[Alert]()
        """Something needs the owner."""
        self.alert_kept = Signal[str]()
        """What needs the owner lies in the store, for the process that tells the owner; what it is about."""
        self.taken = Signal[str]()
        """This process has the account of this channel from now on; another one may have had it."""
