"""
A few SMTP connections for many mails: each finished mail passes its connection to the next that waits. A
connection costs more than a mail: TLS, two greetings and a login. So while more mails wait than there are
connections, each connection sends one after the other. No connection is kept: when no mail waits, it is
closed at once, as servers close idle ones, and a single mail has one of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

AT_ONCE = 4
"""Providers count connections."""
MAILS_EACH = 50
"""Some servers end a connection after a hundred."""
WAIT_S = 5.0
"""Longer, and somebody is handing in a large mail: then there is one connection more."""
_Link = TypeVar("_Link")


@dataclass(slots=True)
class ConnectionSlot(Generic[_Link]):
    """The right to one connection: ``link`` is an open one, if one could be taken over."""

    link: _Link | None = None
    mails: int = 0
    come: anyio.Event = field(default_factory=anyio.Event)


class ConnectionPool(Generic[_Link]):
    """
    Gives out places; every `take` is followed by one `release_link` or `leave`.

    ``close`` drops a link without waiting.
    """

    def __init__(self, close: Callable[[_Link], None]) -> None:
        self._close = close
        self._taken = 0
        self._waiting: deque[ConnectionSlot[_Link]] = deque()

    async def take(self) -> ConnectionSlot[_Link]:
        """Wait a short time for a place."""
        if self._taken < AT_ONCE:
            self._taken += 1
            return ConnectionSlot()
        place: ConnectionSlot[_Link] = ConnectionSlot()
        self._waiting.append(place)
        try:
            with anyio.move_on_after(WAIT_S):
                await place.come.wait()
        except BaseException:
            if not place.come.is_set():
                self._waiting.remove(place)
            else:  # it came in this very moment
                if place.link is not None:
                    self._close(place.link)
                self.leave()
            raise
        if not place.come.is_set():
            self._waiting.remove(place)
            self._taken += 1
        return place

    def release_link(self, place: ConnectionSlot[_Link], link: _Link) -> bool:
        """Return a place whose link can be used again. False: nobody waits for it, so close it."""
        if place.mails + 1 < MAILS_EACH and self._waiting:
            following = self._waiting.popleft()
            following.link, following.mails = link, place.mails + 1
            following.come.set()
            return True
        self.leave()
        return False

    def leave(self) -> None:
        """Return a place whose link is gone: somebody else may open one."""
        if self._waiting:
            self._waiting.popleft().come.set()
        else:
            self._taken -= 1
