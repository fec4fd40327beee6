"""
What a process knows of the others on its database, what it tells them, and when it asks the queue for what
they have written for its accounts.

Theory of operation. Signals stay in the process that commits. What they say of the accounts of others is told
to all processes as the name of the account (`gateway.queue.postgres.notifications`), and whoever has it asks
the queue at once what is due there. That may get lost. So while others live, a look asks the queue for
everything, too: each one where nothing is heard, and else one in ten, and the first one after a process has
come or gone.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

import anyio

from gateway.queue.stores import Cluster

if TYPE_CHECKING:
    from gateway.queue.postgres.notifications import Notifications

_RARE_LOOKS = 10
"""One in so many looks asks for what others have written, where that is also told."""
_CALLED_EVERY_S = (0.02, 0.1)
"""As often it asks because it was told to: within these limits so that asking takes a tenth of the time."""
_ASKING_SHARE = 0.1
_HEARD_S = 60.0
"""What a process has written just before its end is looked for as long as that."""
Others = Callable[[Collection[str] | None], Awaitable[None]]
"""Asks the queue what others have written for these accounts; None: for any, and for what happens once."""


class OtherProcesses:
    """
    The other processes on the database, as this one sees them.

    Args:
        notifying: What all tell each other with; None: nothing is told or heard.
    """

    def __init__(self, notifying: Notifications | None = None) -> None:
        self._notifying = notifying
        self.found = Cluster((), {})
        """What the last look has found; whoever looks puts it here."""
        self._called = anyio.Event()
        self._accounts: set[str] = set()
        """Of which it was told since it has asked."""
        self._everything = False
        """Whether it was told of something else."""
        self.asked_at = -math.inf
        """When it has asked last, by the event loop's clock."""
        self._soonest_at = -math.inf
        self._looks_since = 0
        self._heard_until = -math.inf
        self.missed = False
        """Whether something may be there that the last time did not begin."""

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return len(self.found.processes) < 2

    def tell(self, text: str) -> None:
        """Notify all of an account, or with one of the words for several. Returns at once; may get lost."""
        if self._notifying is not None:
            self._notifying.tell(text)

    def call(self, account: str | None = None) -> None:
        """Another process notifies this one, about an account or about any. Returns at once."""
        if account is None:
            self._everything = True
        else:
            self._accounts.add(account)
        self._called.set()

    async def called_before(self, next_look_at: float) -> bool:
        """Wait for a notification (True), or until it is time to look."""
        with anyio.move_on_at(next_look_at) as limit:
            await self._called.wait()
            await anyio.sleep_until(self._soonest_at)
        return not limit.cancelled_caught

    def is_due(self, *, others_are_new: bool) -> bool:
        """Whether this look also asks for what other processes have written."""
        now, found = anyio.current_time(), self.found
        if not self.alone or found.written:
            self._heard_until = now + _HEARD_S
        self._looks_since += 1
        is_told = self._notifying is not None and self._notifying.listening
        is_regular = not is_told or self._looks_since >= _RARE_LOOKS
        return now < self._heard_until and (is_regular or self.missed or found.written or others_are_new)

    async def ask(self, others: Others, *, called: bool) -> None:
        """
        Ask by ``others``; if it was ``called`` for some accounts, only for those.

        Raises:
            StoreUnavailable: By ``others``; the next look asks for everything.
        """
        self._called = anyio.Event()  # whoever calls from now on is heard after this
        accounts = self._accounts if called and not self._everything else None
        self._accounts, self._everything, self.asked_at = set(), False, anyio.current_time()
        if accounts is None:
            self._looks_since, self.missed = 0, False
        try:
            await others(accounts)
        except BaseException:
            self.missed = True
            raise
        shortest_s, longest_s = _CALLED_EVERY_S
        took_s = anyio.current_time() - self.asked_at
        self._soonest_at = self.asked_at + min(longest_s, max(shortest_s, took_s / _ASKING_SHARE))
