"""
`MemoryInbox`: the gateway's side of a channel, in memory, for every channel test.

It keeps the promises of `channels.base.Inbox` (a batch and its positions become true together, a known
message is a success without work) and survives the channel, as a database would: give the same one to the
next ``run``. ``hold`` is a disk that takes nothing for a while, ``refuse`` one that fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from agent_core.messages import Amendment, InboundMessage, OutboundMessage, SessionKey
from channels.base import Channel, LinkState


class MemoryInbox:
    """
    An `Inbox` that tests can look into.

    ``accepted`` holds each message once, in order of acceptance; ``offered`` every message of every call,
    the refused and the repeated ones too; ``states`` what was reported.
    """

    def __init__(self) -> None:
        self.accepted: list[InboundMessage] = []
        self.offered: list[InboundMessage] = []
        self.positions: dict[str, str] = {}
        self.amendments: list[Amendment] = []
        self.states: list[LinkState] = []
        self.details: list[str] = []
        self.facts: list[dict[str, Any]] = []
        self.delivered: dict[str, str] = {}
        self.outbound: dict[str, OutboundMessage] = {}
        """In which conversation what was sent stands."""
        self.in_doubt: list[str] = []
        self.on_accepted: Callable[[], object] | None = None
        """Called when a batch has become true, before `accept` returns: the moment to pull the plug."""
        self._known: set[tuple[str, str, str]] = set()
        self._held: anyio.Event | None = None
        self._refusals: list[Exception] = []
        self._waiters: set[anyio.Event] = set()

    # ── what a channel calls ──
    async def accept(
        self,
        messages: Sequence[InboundMessage],
        positions: Mapping[str, str] | None = None,
        amendments: Sequence[Amendment] = (),
    ) -> None:
        self.offered.extend(messages)
        self._notify()
        await anyio.lowlevel.checkpoint()
        if self._held is not None:
            await self._held.wait()
        if self._refusals:
            raise self._refusals.pop(0)
        for message in messages:
            identity = (message.channel, message.account, message.native_id)
            if identity not in self._known:
                self._known.add(identity)
                # What a database gives back later is what JSON has kept of it.
                self.accepted.append(InboundMessage.model_validate_json(message.model_dump_json()))
        self.positions.update(positions or {})
        self.amendments.extend(amendments)
        self._notify()
        if self.on_accepted is not None:
            self.on_accepted()

    async def position(self, name: str) -> str | None:
        await anyio.lowlevel.checkpoint()
        return self.positions.get(name)

    def report(self, state: LinkState, detail: str = "", **facts: Any) -> None:
        self.states.append(state)
        self.details.append(detail)
        self.facts.append(facts)
        self._notify()

    async def delivered_id(self, provider_id: str) -> str | None:
        await anyio.lowlevel.checkpoint()
        return self.delivered.get(provider_id)

    async def ignored_session(self, native_id: str, sender: str) -> SessionKey | None:
        await anyio.lowlevel.checkpoint()
        for each in self.accepted:
            if (each.native_id, each.sender.address, each.addressed) == (native_id, sender, False):
                return each.session
        return None

    async def find_sent_message(self, outbound_id: str) -> OutboundMessage | None:
        await anyio.lowlevel.checkpoint()
        return self.outbound.get(outbound_id)

    async def unconfirmed_sends(self):
        await anyio.lowlevel.checkpoint()
        return list(self.in_doubt)

    # ── what a test calls ──
    def hold(self) -> None:
        """From now on `accept` waits, and takes nothing."""
        self._held = anyio.Event()

    def release(self) -> None:
        """`accept` goes on."""
        if self._held is not None:
            self._held.set()
            self._held = None

    def refuse(self, error: Exception) -> None:
        """The next `accept` raises ``error`` and takes nothing."""
        self._refusals.append(error)

    @property
    def texts(self) -> list[str]:
        """The accepted texts, in order."""
        return [message.text for message in self.accepted]

    @property
    def state(self) -> LinkState | None:
        """What was reported last."""
        return self.states[-1] if self.states else None

    def forget_reports(self) -> None:
        """A new run begins: what an earlier one reported does not count."""
        self.states.clear()
        self.details.clear()
        self.facts.clear()

    async def until(self, condition: Callable[[MemoryInbox], bool], *, within_s: float = 60.0) -> None:
        """Wait until ``condition(self)``; it is looked at whenever something has happened here."""
        try:
            with anyio.fail_after(within_s):
                while not condition(self):
                    event = anyio.Event()
                    self._waiters.add(event)
                    try:
                        await event.wait()
                    finally:
                        self._waiters.discard(event)
        except TimeoutError:
            raise AssertionError(
                f"in {within_s} s: accepted {self.texts}, offered {len(self.offered)}, states {self.states}"
            ) from None

    async def until_accepted(self, count: int, *, within_s: float = 60.0) -> list[InboundMessage]:
        """Wait until ``count`` messages are accepted, and return them."""
        await self.until(lambda inbox: len(inbox.accepted) >= count, within_s=within_s)
        return self.accepted

    async def until_offered(self, count: int, *, within_s: float = 60.0) -> None:
        """Wait until ``count`` messages were handed over, accepted or not."""
        await self.until(lambda inbox: len(inbox.offered) >= count, within_s=within_s)

    async def until_up(self, *, within_s: float = 60.0) -> None:
        """Wait until the last report says UP."""
        await self.until(lambda inbox: inbox.state is LinkState.UP, within_s=within_s)

    def _notify(self) -> None:
        for event in self._waiters:
            event.set()


class Run:
    """A ``run`` that goes on in the background, and how it ended."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.returned = False
        self.cancelled = False
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()

    async def until_ended(self, *, within_s: float = 60.0) -> BaseException | None:
        """Wait for the end and return the exception, if there was one."""
        with anyio.fail_after(within_s):
            await self.ended.wait()
        return self.error

    async def cancel(self, *, within_s: float = 60.0) -> None:
        """Cancel it and wait until it has let go."""
        self.scope.cancel()
        await self.until_ended(within_s=within_s)


@asynccontextmanager
async def running(channel: Channel, inbox: MemoryInbox) -> AsyncIterator[Run]:
    """
    Run a channel until the block ends; its exception is in ``Run.error``, not raised.

    The inbox keeps what is accepted and forgets what was reported before.
    """
    run = Run()

    async def work() -> None:
        try:
            with run.scope:
                await channel.run(inbox)
                run.returned = True
            run.cancelled = run.scope.cancelled_caught
        except Exception as error:
            run.error = error
        finally:
            run.ended.set()

    failure: BaseException | None = None
    inbox.forget_reports()
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        try:
            yield run
        except (Exception, pytest.fail.Exception) as error:
            # Out of the group's reach, so that a failed assertion stays one.
            failure = error
        finally:
            run.scope.cancel()
    if failure is not None:
        raise failure
