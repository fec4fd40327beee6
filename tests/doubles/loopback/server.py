"""
The place where people talk to the loopback bot: a server in memory that outlives the bot.

Upstream: what people say gets a growing sequence number and is handed out from the place the bot asks for,
but never again from before what the bot has acknowledged: a message that is acknowledged and then forgotten
is lost, as with any real server. Downstream: with `Redelivery.SAME_KEY` it recognises a repeated key and
shows the message once; otherwise every try that gets through is shown, and the oracle of a test sees it.

Everything that goes wrong is a knob, and each knob is used up or switched off by itself; nothing is random.
One event loop at a time; not for several threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from agent_core.messages import Attachment, Audience, MessageContext, OutboundKind
from channels.base import ChannelAuthFailed, ChannelError, ChannelUnavailable, DeliveryUncertain, Redelivery


class Said(BaseModel):
    """Something that a person said."""

    model_config = ConfigDict(frozen=True)

    sequence: int
    native_id: str
    person: str
    text: str
    conversation: str
    said_at: AwareDatetime
    audience: Audience = Audience.DIRECT
    addressed: bool = True
    verified: bool = True
    name: str = ""
    quotes: str = ""
    """What the bot has said, if this is an answer to it."""


class Delivered(BaseModel):
    """Something that the bot sent and the server took."""

    model_config = ConfigDict(frozen=True)

    key: str
    conversation: str
    text: str
    kind: OutboundKind = OutboundKind.REPLY
    context: MessageContext = Field(default_factory=MessageContext)
    rings_for: tuple[str, ...] | None = None
    attachments: tuple[Attachment, ...] = ()
    provider_id: str = ""


@dataclass(slots=True)
class Link:
    """A login; dead as soon as the server has moved on to another generation."""

    account: str
    generation: int
    fresh: bool = True


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LoopbackServer:
    """
    A server for `LoopbackChannel`.

    Args:
        redelivery: What makes a repeated delivery safe here.

    Knobs, to be set at any time:

    - ``refuse_login``: every login fails.
    - ``replays``: on each new link, so many messages from before the asked position come again.
    - ``echo``: what the bot sends comes back to it as its own message, as in a Matrix room.
    - ``delay_s``: a delivery waits so long before it is taken; ``answer_delay_s``: after it.
    - `fail_deliveries`, `lose_answers`, `drop_link`, `go_down` and `come_back`, `rewind`.
    """

    def __init__(
        self, *, redelivery: Redelivery = Redelivery.SAME_KEY, now: Callable[[], datetime] = _utc_now
    ) -> None:
        self.redelivery = redelivery
        self.groups: set[str] = set()
        self.rooms: dict[str, tuple[str, str, dict[str, str]]] = {}
        """Of a room its name, who has set that, and the names of its members."""
        self.left: set[str] = set()
        """Where the bot is not any more."""
        self.said: list[Said] = []
        self.tries: list[Delivered] = []
        self.delivered: list[Delivered] = []
        self.acknowledged = 0
        self.refuse_login = False
        self.replays = 0
        self.echo = False
        self.delay_s = 0.0
        self.answer_delay_s = 0.0
        self.typing: set[str] = set()
        self.previews: deque[tuple[str, str]] = deque(maxlen=10_000)
        self._now = now
        self._first_by_key: dict[str, Delivered] = {}
        self._failures: deque[ChannelError] = deque()
        self._answers_to_lose = 0
        self._generation = 0
        self._down = False
        self._waiters: set[anyio.Event] = set()

    # ── people ──
    def say(
        self,
        person: str,
        text: str,
        *,
        conversation: str | None = None,
        native_id: str | None = None,
        addressed: bool = True,
        verified: bool = True,
        name: str = "",
        quotes: str = "",
    ) -> str:
        """
        A person says something: to the bot alone (in ``dm-<person>``) or in ``conversation``, which is a
        group if it is in ``groups``. Returns the native id; giving a used one repeats that message.
        """
        self._refresh()
        place = conversation or f"dm-{person}"
        sequence = len(self.said) + 1
        said = Said(
            sequence=sequence,
            native_id=native_id or f"m{sequence}",
            person=person,
            text=text,
            conversation=place,
            said_at=self._now(),
            audience=Audience.GROUP if place in self.groups else Audience.DIRECT,
            addressed=addressed,
            verified=verified,
            name=name,
            quotes=quotes,
        )
        self._keep_said(said)
        self._notify()
        return said.native_id

    async def answers(
        self, count: int, *, conversation: str | None = None, within_s: float = 60.0
    ) -> list[Delivered]:
        """
        Wait until the people (of one conversation) see ``count`` messages from the bot.

        Raises:
            TimeoutError: It took longer; the text says what was seen.
        """
        try:
            with anyio.fail_after(within_s):
                while len(seen := self.seen(conversation)) < count:
                    await self._change()
        except TimeoutError:
            seen = self.seen(conversation)
            raise TimeoutError(f"{len(seen)} of {count} answers in {within_s} s: {seen}") from None
        return seen

    def seen(self, conversation: str | None = None) -> list[Delivered]:
        """What the people (of one conversation) see of the bot, in order."""
        self._refresh()
        return [d for d in self.delivered if conversation is None or d.conversation == conversation]

    # ── knobs ──
    def fail_deliveries(self, *errors: ChannelError) -> None:
        """The next deliveries fail with these errors, one each, and are not taken."""
        self._failures.extend(errors)

    def lose_answers(self, count: int = 1) -> None:
        """The next deliveries are taken, but the bot does not hear of it."""
        self._answers_to_lose += count

    def drop_link(self) -> None:
        """Every link breaks; a new login is possible."""
        self._generation += 1
        self._notify()

    def go_down(self) -> None:
        """Every link breaks, and there is nobody to log in to."""
        self._down = True
        self.drop_link()

    def come_back(self) -> None:
        """Logins are possible again."""
        self._down = False

    def rewind(self, sequence: int = 0) -> None:
        """Forget what was acknowledged after ``sequence``: it is handed out again if it is asked for."""
        self.acknowledged = min(self.acknowledged, sequence)

    # ── the bot ──
    async def login(self, account: str) -> Link:
        """
        Open a link.

        Raises:
            ChannelUnavailable, ChannelAuthFailed: By the knobs.
        """
        await anyio.lowlevel.checkpoint()
        if self._down:
            raise ChannelUnavailable("the loopback server is down")
        if self.refuse_login:
            raise ChannelAuthFailed("the loopback server refuses the login", account=account)
        return Link(account, self._generation)

    async def fetch(self, link: Link, after: int, *, limit: int, wait_s: float) -> Sequence[Said]:
        """
        Messages after ``after``, oldest first; an empty answer after ``wait_s`` without any.

        Raises:
            ChannelUnavailable: The link is broken.
        """
        await anyio.lowlevel.checkpoint()
        self._refresh()
        start = max(after, self.acknowledged)
        if link.fresh:
            start, link.fresh = max(0, start - self.replays), False
        with anyio.move_on_after(wait_s):
            while True:
                self._check(link)
                self._refresh()
                if len(self.said) > start:
                    return self.said[start : start + limit]
                if wait_s <= 0:
                    break
                await self._change()
        self._check(link)
        return ()

    async def acknowledge(self, link: Link, sequence: int) -> None:
        """
        Everything up to ``sequence`` is taken and need not be kept.

        Raises:
            ChannelUnavailable: The link is broken.
        """
        await anyio.lowlevel.checkpoint()
        self._check(link)
        if sequence > self.acknowledged:
            self._keep_acknowledged(sequence)

    async def take(self, link: Link, message: Delivered) -> str:
        """
        Take one message and return its name here.

        Raises:
            DeliveryUncertain: It was taken, but the answer is lost.
            ChannelError: By the knobs; not taken.
        """
        await anyio.lowlevel.checkpoint()
        self._check(link)
        if self._failures:
            raise self._failures.popleft()
        if self.delay_s > 0:
            await anyio.sleep(self.delay_s)
            self._check(link)
        self._refresh()
        provider_id = self._keep_try(message)
        self._notify()
        if self.echo and self.tries[-1] is self.delivered[-1]:
            self.say(link.account, message.text, conversation=message.conversation, native_id=provider_id)
        if self.answer_delay_s > 0:
            await anyio.sleep(self.answer_delay_s)
        if self._answers_to_lose > 0:
            self._answers_to_lose -= 1
            raise DeliveryUncertain("the line broke after the message was sent")
        return provider_id

    async def find(self, link: Link, key: str) -> str | None:
        """
        The name here of the message that was taken under ``key``.

        Raises:
            ChannelUnavailable: The link is broken.
        """
        await anyio.lowlevel.checkpoint()
        self._check(link)
        self._refresh()
        found = self._first_by_key.get(key)
        return found.provider_id if found else None

    # ── inside ──
    def _check(self, link: Link) -> None:
        if self._down or link.generation != self._generation:
            raise ChannelUnavailable("the link to the loopback server is broken")

    def _notify(self) -> None:
        for event in self._waiters:
            event.set()

    async def _change(self) -> None:
        """Wait until something has happened."""
        event = anyio.Event()
        self._waiters.add(event)
        try:
            await event.wait()
        finally:
            self._waiters.discard(event)

    def _refresh(self) -> None:
        """Learn what happened elsewhere; in memory nothing does."""

    def _keep_said(self, said: Said) -> None:
        self.said.append(said)

    def _keep_acknowledged(self, sequence: int) -> None:
        self.acknowledged = sequence

    def _keep_try(self, message: Delivered) -> str:
        return self._show(message)

    def _show(self, message: Delivered) -> str:
        """Count a try and let the people see it, unless its key is known."""
        known = self._first_by_key.get(message.key) if self.redelivery is Redelivery.SAME_KEY else None
        provider_id = known.provider_id if known else f"d{len(self.tries) + 1}"
        message = message.model_copy(update={"provider_id": provider_id})
        self.tries.append(message)
        if known is None:
            self.delivered.append(message)
            self._first_by_key.setdefault(message.key, message)
        return provider_id
