"""
The heartbeat as a channel: at each due instant a tick is put into the inbox, unless there is nothing to do.

The server of this channel is time itself, and its position the last tick: the tick and the position are
accepted together, so a tick fires once, whatever is killed when. A tick without work moves the position and
costs nothing else. Waiting is done in short pieces, because a suspended machine's timers stand still and its
wall clock may jump.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import anyio
import structlog

from agent_core.messages import InboundMessage, OutboundMessage, Sender, SessionKey
from channels.base import Capabilities, Clock, DeliveryFailed, Inbox, LinkState, Receipt, Redelivery
from channels.heartbeat.checklist import has_work
from channels.heartbeat.schedule import Schedule, parse_instant, tick_name
from channels.heartbeat.silence import SILENCE, is_silence

__all__ = ["Forward", "HeartbeatChannel", "tick_message"]

_MAX_BYTES = 2_000_000
_MAX_CHARS = 16_000
_POSITION = "last_tick"
_log = structlog.get_logger(__name__)

Forward = Callable[[OutboundMessage, Callable[[], Awaitable[None]]], Awaitable[Receipt]]
"""Delivers an alert to the owner elsewhere; the same promises as `Channel.deliver`."""


class HeartbeatChannel:
    """
    A channel on which only the clock speaks, in the session ``heartbeat/owner``.

    Args:
        schedule: When.
        checklist: The file that says what to look after (``HEARTBEAT.md``); without it nothing is done.
        clock: The wall clock.
        name, account: As in `channels.base.Channel`.
        forward: Takes alerts to the owner. Without it `deliver` refuses: time reads no messages.
        look_every_s: The longest piece of waiting.
        sleep: Lets time pass.
    """

    capabilities = Capabilities(redelivery=Redelivery.SAME_KEY)

    def __init__(
        self,
        schedule: Schedule,
        *,
        checklist: Path,
        clock: Clock,
        name: str = "heartbeat",
        account: str = "heartbeat",
        forward: Forward | None = None,
        look_every_s: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.name = name
        self.account = account
        self._schedule = schedule
        self._checklist = checklist
        self._clock = clock
        self._forward = forward
        self._look_every_s = look_every_s
        self._sleep = sleep

    async def run(self, inbox: Inbox) -> None:
        """Let the time pass until cancelled; see `Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        last = parse_instant(await inbox.position(_POSITION))
        if last is None:
            # Nothing was missed before the very first start.
            last = self._schedule.newest(self._clock.now())
            await inbox.accept([], {_POSITION: tick_name(last)})
        self._report(inbox, last)
        while True:
            now = self._clock.now()
            instant = self._schedule.due(now, last)
            if instant is None:
                until_next_s = (self._schedule.following(now) - now).total_seconds()
                await self._sleep(min(until_next_s, self._look_every_s))
                continue
            message = await self._tick(instant)
            await inbox.accept([message] if message else [], {_POSITION: tick_name(instant)})
            _log.debug("heartbeat.ticked", instant=tick_name(instant), work=message is not None)
            last = instant
            self._report(inbox, last)

    def _report(self, inbox: Inbox, last: datetime) -> None:
        following = tick_name(self._schedule.following(self._clock.now()))
        inbox.report(LinkState.UP, last_tick=tick_name(last), next_tick=following)

    async def _tick(self, instant: datetime) -> InboundMessage | None:
        try:
            checklist = await anyio.to_thread.run_sync(_load_checklist, self._checklist)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("heartbeat.checklist_unreadable", error=type(error).__name__, errno=error.errno)
            return None
        if not has_work(checklist):
            return None
        return tick_message(
            instant,
            checklist,
            local=instant.astimezone(self._schedule.zone),
            name=self.name,
            account=self.account,
        )

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Forward an alert; what means "nothing to say" is taken in silence. See `Channel.deliver`."""
        if is_silence(message.text):
            return Receipt(provider_id=f"silent-{message.id}")
        if self._forward is None:
            raise DeliveryFailed(
                "the heartbeat has no target: nobody reads messages that are sent to the clock"
            )
        return await self._forward(message, uncertain)

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never asked, because of `Redelivery.SAME_KEY`."""
        return None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Nobody watches."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """Nobody watches."""

    async def aclose(self) -> None:
        """There is nothing to let go of."""


def tick_message(
    instant: datetime, checklist: str, *, local: datetime, name: str = "heartbeat", account: str = "heartbeat"
) -> InboundMessage:
    """
    The message that a tick is; the same one for the same instant and checklist.

    Args:
        instant: When the tick stands; makes its identity.
        checklist: What to look after.
        local: The same instant in the owner's zone, for the model to read.
        name: The channel's name.
        account: The channel's account.
    """
    shown = checklist.strip()
    if len(shown) > _MAX_CHARS:
        shown = (
            f"{shown[:_MAX_CHARS]}\n[The rest of the file was left out: it has {len(checklist)} characters.]"
        )
    return InboundMessage(
        channel=name,
        account=account,
        native_id=tick_name(instant),
        session=SessionKey(name, "owner"),
        sender=Sender(address="heartbeat", verified=True),
        text=(
            f"This is the regular check-in of {local:%A, %Y-%m-%d %H:%M %z}; no person wrote it.\n"
            "Go through the checklist below and do what is due. Write to the owner only if something needs "
            f"their attention; otherwise answer with nothing but {SILENCE}.\n\n"
            f"HEARTBEAT.md:\n{shown}"
        ),
        received_at=instant,
        kind="tick",
    )


def _load_checklist(path: Path) -> str:
    """
    The text of a file of any size and content.

    Raises:
        OSError: It is not there, may not be read, or is no regular file.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"not a regular file: {path}")
        data = file.read(_MAX_BYTES)
    return data.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
