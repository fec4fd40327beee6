"""
The gateway's side of the endpoint: a request is an inbound message, and what is delivered while it is open is
its answer.

A message's native id comes from the token and the request's key, and what was delivered into its answer has
provider ids that begin with it. So an answer can be put together again for a repeated request, after a
restart too. What answers nothing (a reminder, the outcome of an approval) waits in the outbox until the
person's next request.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from agent_core.messages import (
    InboundMessage,
    MessageContext,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
)
from channels.api.config import ApiConfig
from channels.api.request import RequestWords
from channels.api.token_store import ApiToken, ApiTokens
from channels.base import Capabilities, ChannelUnavailable, Inbox, LinkState, NoRecipient, Receipt, Redelivery
from channels.plugin import ChannelServices

if TYPE_CHECKING:
    from aiohttp.web import AbstractRouteDef

MAX_OPEN = 16
_ACCEPT_LIMIT_S = 20.0
_CHECK_EVERY_S = 2.0
_KEPT_LIMIT_S = 1.0
"""The time limit for reading what is kept for a person; it takes milliseconds."""
_APPROVED = "approved"


class KeyReused(Exception):
    """This Idempotency-Key came with another request before; use a new one for each."""


class TooManyRequests(Exception):
    """Too many requests of this token are being answered."""


@dataclass(frozen=True)
class _Route:
    """The note of this channel with a message: its own id, and the digest of its request's body."""

    native_id: str = ""
    digest: str = ""


class OpenRequest:
    """A request that is being answered, perhaps over several connections."""

    def __init__(self, native_id: str, session: SessionKey, digest: str) -> None:
        self.native_id = native_id
        self.session = session
        self.digest = digest
        self.preview = ""
        self.users = 0
        self.awaits_kept = False  # a message that waited for a request is on its way into it
        self.parts: list[OutboundMessage] = []
        self.changed = anyio.Event()

    @property
    def answers(self) -> bool:
        """Return True once its own answer is there, and what became of an approval that it gave."""
        ids = [_id_of(part) for part in self.parts]
        if self.native_id not in ids:
            return False
        own = ids.index(self.native_id)
        is_approval = _APPROVED in self.parts[own].notes.settled.split(",")
        return not is_approval or any(map(_is_outcome, self.parts[own + 1 :]))

    @property
    def waits_for_outcome(self) -> bool:
        """Return True while only the confirmation of an approval is there."""
        return bool(self.parts) and not self.answers

    @property
    def text(self) -> str:
        """The answer so far."""
        texts = [part.text for part in self.parts]
        return "\n\n".join([*texts, *([self.preview] if self.preview and not self.answers else [])])

    def add_message(self, message: OutboundMessage) -> str:
        """Add a message, once, and return its provider id."""
        if message.id not in [part.id for part in self.parts]:
            self.parts.append(message)
            self.preview = ""
            self.notify()
        own = next((part for part in self.parts if _id_of(part) == self.native_id), None)
        if own is not None and own.id == message.id:
            return _own(self.native_id)
        self.awaits_kept = False
        further = [part.id for part in self.parts if part is not own]
        return f"{self.native_id}.{further.index(message.id)}"

    def notify(self) -> None:
        """Wake up those who wait for news."""
        self.changed.set()
        self.changed = anyio.Event()


class ApiChannel:
    """The endpoint as a channel; ``api_server.py`` reads and writes HTTP."""

    capabilities = Capabilities(
        redelivery=Redelivery.SAME_KEY, previews=True, typing=False, max_text_bytes=1_000_000
    )

    def __init__(
        self,
        config: ApiConfig,
        services: ChannelServices,
        routes: Callable[[ApiChannel], Sequence[AbstractRouteDef]] = lambda _: (),
    ) -> None:
        self._routes = routes
        self.name = services.name
        self.account = "squidbot"
        self.model, self.origins = config.model, config.origins
        self.services = services
        self.tokens = ApiTokens(services.state)
        self._inbox: Inbox | None = None
        self._open: dict[str, OpenRequest] = {}
        self._kept: set[SessionKey] = set()

    def routes(self) -> Sequence[AbstractRouteDef]:
        """See `SupportsHttp`."""
        return self._routes(self)

    async def run(self, inbox: Inbox) -> None:
        """Take requests until cancelled; see `Channel.run`."""
        self._inbox = inbox
        try:
            inbox.report(LinkState.UP)
            await anyio.sleep_forever()
        finally:
            self._inbox = None
            for request in self._open.values():
                request.notify()

    @asynccontextmanager
    async def ask(self, token: ApiToken, key: str, words: RequestWords) -> AsyncIterator[OpenRequest]:
        """
        Accept a request and give its answer as it comes, see `watch`. Without a key it is a new one.

        Raises KeyReused, TooManyRequests, or ChannelUnavailable: it is not known whether it was accepted.
        """
        inbox, native_id = self._running(), f"{token.digest[:16]}.{key or secrets.token_hex(16)}"
        session = self.session_of(token.person, words.conversation, native_id)
        stored = await self._stored(inbox, native_id) if key else []
        mine = [one for one in self._open.values() if one.native_id.startswith(token.digest[:16])]
        if sum(one.users for one in mine) >= MAX_OPEN:
            raise TooManyRequests(f"{MAX_OPEN} requests of this token are being answered; wait for one")
        request = self._open.get(native_id)
        if request is None:
            request = self._open[native_id] = OpenRequest(native_id, session, words.digest)
            request.parts = stored
        request.users += 1
        try:
            if request.digest != words.digest or any(
                _id_of(part) == native_id and part.context.read_route(_Route).digest != words.digest
                for part in request.parts
            ):
                raise KeyReused(str(KeyReused.__doc__))
            if not request.answers:
                await self._accept(inbox, token, session, native_id, words)
                request.awaits_kept = self._send_kept(token.person)
            yield request
        finally:
            request.users -= 1
            if not request.users:
                del self._open[native_id]

    def session_of(self, person: str, conversation: str, native_id: str = "") -> SessionKey:
        """Return the session of a conversation that a client has named, else that of a single request."""
        place = f"chat.{conversation}" if conversation else f"once.{native_id}"
        return SessionKey(self.name, place, person)

    async def watch(self, request: OpenRequest) -> AsyncGenerator[str]:
        """Yield the answer so far, again and again until it is whole. Raises ChannelUnavailable."""
        look_s = 0.05
        while True:
            changed = request.changed
            yield request.text
            if request.answers and not request.awaits_kept:
                return
            if request.answers:
                with anyio.move_on_after(_KEPT_LIMIT_S):
                    await changed.wait()
                request.awaits_kept = False
                continue
            look_s = min(look_s * 2, _CHECK_EVERY_S)
            with anyio.move_on_after(look_s) as waited:
                await changed.wait()
            if waited.cancelled_caught:  # the answer may have come between two requests with one key
                stored = await self._stored(self._running(), request.native_id)
                request.parts = stored if len(stored) > len(request.parts) else request.parts
            self._running()

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Give a message to the request that it answers; see `Channel.deliver`."""
        native_id, inbox = _id_of(message), self._running()
        request = self._open.get(native_id)
        if request is None or (request.answers and message.id not in [part.id for part in request.parts]):
            if native_id and await inbox.delivered_id(_own(native_id)) in (None, message.id):
                await uncertain()  # who asked has gone; a repetition finds it under this id
                return Receipt(_own(native_id))
            request = self._someone_of(message.session)
        if request is None:
            self._kept.add(message.session)
            raise NoRecipient("the person has made no request since")
        await uncertain()
        return Receipt(request.add_message(message))

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never asked, because of `Redelivery.SAME_KEY`."""
        return None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Do nothing: the connection shows that work goes on."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """Show the unfinished answer to the oldest request of the conversation."""
        for request in self._open.values():
            if request.session == session and not request.answers:
                request.preview = text.strip()
                request.notify()
                return

    async def aclose(self) -> None:
        """Nothing is open."""

    # ── inside ──
    def _running(self) -> Inbox:
        if self._inbox is None:
            raise ChannelUnavailable("squidbot is not running yet, or is stopping")
        return self._inbox

    async def _stored(self, inbox: Inbox, native_id: str) -> list[OutboundMessage]:
        """The messages that were delivered into an answer before, as they were made."""
        found = [await self._sent(inbox, _own(native_id))]
        while (further := await self._sent(inbox, f"{native_id}.{len(found) - 1}")) is not None:
            found.append(further)
        return sorted((one for one in found if one is not None), key=lambda one: one.created_at)

    async def _sent(self, inbox: Inbox, provider_id: str) -> OutboundMessage | None:
        key = await inbox.delivered_id(provider_id)
        return None if key is None else await inbox.find_sent_message(key)

    async def _accept(
        self, inbox: Inbox, token: ApiToken, session: SessionKey, native_id: str, words: RequestWords
    ) -> None:
        message = InboundMessage(
            channel=self.name,
            account=self.account,
            native_id=native_id,
            session=session,
            sender=Sender(address=token.person, verified=True),
            text=words.text,
            received_at=self.services.clock.now(),
            context=MessageContext().with_route(_Route(native_id, words.digest)),
            background=words.earlier,
        )
        with anyio.move_on_after(_ACCEPT_LIMIT_S) as limit:
            files = [
                await self.services.attachments.save(f"image {number}", kind, content, message=message)
                for number, (kind, content) in enumerate(words.images, 1)
            ]
            await inbox.accept([message.model_copy(update={"attachments": tuple(files)})])
        if limit.cancelled_caught:
            raise ChannelUnavailable("it cannot be stored now")

    def _send_kept(self, person: str) -> bool:
        """Have what waits for the person delivered; return True if there is something."""
        found = [each for each in self._kept if each.thread == person]
        for session in found:
            self._kept.discard(session)
            if self.services.arrived is not None:
                self.services.arrived(session)
        return bool(found)

    def _someone_of(self, session: SessionKey) -> OpenRequest | None:
        """The request that gets what answers none: one that waits for an outcome, there before elsewhere."""
        theirs = [one for one in self._open.values() if one.session.thread == session.thread]
        theirs = [one for one in theirs if not one.answers or one.awaits_kept]
        theirs.sort(key=lambda one: (not one.waits_for_outcome, one.session != session))
        return theirs[0] if theirs else None


def _own(native_id: str) -> str:
    """The provider id of the answer itself; what else came into it is numbered."""
    return f"{native_id}.own"


def _id_of(message: OutboundMessage) -> str:
    return message.context.read_route(_Route).native_id


def _is_outcome(message: OutboundMessage) -> bool:
    """Return True for what ends a turn, or asks its next words."""
    return message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY) or bool(message.notes.approves)
