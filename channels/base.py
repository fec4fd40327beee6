"""
The contract between a channel and the gateway.

A channel does two things. ``run`` receives: it hands batches of messages, together with the channel's new
position, to the `Inbox`, and tells its server "got it" only after ``accept`` has returned. ``deliver``
sends one message and is safe to call again with the same message. Both raise `ChannelError`s only; the
supervisor restarts ``run`` with a back-off and the delivery loop retries ``deliver`` by the error's kind.

``examples/squidbot-irc`` is a small complete channel; docs/own-channel.md explains it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from agent_core.messages import Amendment, InboundMessage, MessageContext, OutboundMessage, SessionKey

if TYPE_CHECKING:
    from aiohttp.web import AbstractRouteDef


class ChannelClock(Protocol):
    """The source of time, so that tests can use their own. The same shape as agent_core's."""

    def now(self) -> datetime:
        """The wall clock: an aware UTC datetime. It may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for limits and ages."""
        ...


class ChannelError(Exception):
    """
    Something is wrong with this channel.

    ``temporary``: trying again can help. ``public``: what a stranger may read. ``fields``: for the log.
    """

    temporary: ClassVar[bool] = False

    def __init__(
        self,
        detail: str = "",
        /,
        *,
        public: str | None = None,
        retry_after_s: float | None = None,
        **fields: Any,
    ) -> None:
        self.public = public or (type(self).__doc__ or "").strip().splitlines()[0]
        self.retry_after_s = retry_after_s
        self.fields = fields
        super().__init__(detail or self.public)


class ChannelUnavailable(ChannelError):
    """The server cannot be reached at the moment."""

    temporary = True


class NoRecipient(ChannelUnavailable):
    """Nobody is there to receive it. Only for a channel that reports arrivals (`Delivery.present`)."""


class ChannelAuthFailed(ChannelError):
    """The server does not accept the credentials; the operator must check them."""


class ChannelMisconfigured(ChannelError):
    """The channel's settings cannot work; the operator must correct them."""


class DeliveryFailed(ChannelError):
    """The server refused this message for good."""


class DeliveryUncertain(ChannelError):
    """The server may have accepted the message, but its answer was lost."""

    temporary = True


class AttachmentRefused(Exception):
    """This file cannot be kept. ``public`` is a sentence that anybody may read."""

    temporary = False

    def __init__(self, public: str, /, **fields: object) -> None:
        self.public = public
        self.fields = fields
        super().__init__(public)


class Redelivery(StrEnum):
    """The reason why repeating a delivery that may already have been taken is safe."""

    SAME_KEY = "same_key"
    """The server recognises the repetition by its key: deliver again."""
    PROBE = "probe"
    """`Channel.probe` can find out whether it was taken."""
    REVIEW = "review"
    """Neither: a person must decide."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a channel; the gateway uses no others."""

    redelivery: Redelivery
    previews: bool = False
    """`Channel.preview` shows unfinished answers."""
    typing: bool = False
    """`Channel.typing` shows that work goes on."""
    acknowledgements: bool = False
    """`SupportsAcknowledgements.stage` shows how far a message is."""
    email_style: bool = False
    """Its messages have a greeting and a signature; a command is their first line alone."""
    max_text_bytes: int = 16_000
    """Longer answers are split before they become outbox rows."""
    edits: bool = False
    """A reply with ``context.edits`` takes the place of what was sent under that provider id."""
    attachments: bool = False
    """`OutboundMessage.attachments` are sent along; otherwise the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """
    The server took the message as ``provider_id``.

    ``session`` is where it arrived, if the channel resolved a person or alias.
    """

    provider_id: str
    session: SessionKey | None = None


class LinkState(StrEnum):
    """The state of a channel, for ``status`` and ``/readyz``."""

    CONNECTING = "connecting"
    CATCHING_UP = "catching_up"
    UP = "up"
    """Connected, and everything that waited on the server has been accepted."""
    DOWN = "down"
    FAILED = "failed"
    """It needs the operator: wrong credentials or settings."""


class Inbox(Protocol):
    """The gateway's side, given to ``run``."""

    async def accept(
        self,
        messages: Sequence[InboundMessage],
        positions: Mapping[str, str] | None = None,
        amendments: Sequence[Amendment] = (),
    ) -> None:
        """
        Take a batch over, durably and in order, with the channel's new positions.

        ``amendments`` change what was accepted before; they become true together with the batch and are
        applied after its messages.

        In `MessageContext` a channel says what shall become of a message.

        After it has returned the server may be told that the messages are taken. A message that is already
        known is a success without work. Raises nothing but cancellation: while the store cannot take
        anything (a full disk) it waits and tries again, and so nothing is acknowledged meanwhile.
        """
        ...

    async def position(self, name: str) -> str | None:
        """The value last committed under ``name`` for this channel and account; None at the first start."""
        ...

    def report(self, state: LinkState, detail: str = "", **facts: Any) -> None:
        """Report the state of the link. ``detail`` is a sentence for the operator, without secrets."""
        ...

    async def delivered_id(self, provider_id: str) -> str | None:
        """The outbox id that was delivered as ``provider_id``, or None: to recognise the bot's own echo."""
        ...

    async def ignored_session(self, native_id: str, sender: str) -> SessionKey | None:
        """
        The conversation of a message of this sender that was accepted and was not meant for the bot
        (`InboundMessage.addressed`); None: there is none.
        """
        ...

    async def find_sent_message(self, outbound_id: str) -> OutboundMessage | None:
        """The message of this outbox id, or None if it is unknown."""
        ...

    async def unconfirmed_sends(self) -> Sequence[str]:
        """Return outbox ids that the server may have under an unknown name, as they may be answered."""
        ...


class Channel(Protocol):
    """
    A place where people talk.

    ``name`` is the key under ``channels:`` in the configuration, ``account`` the bot's own address there.
    Both methods that talk to the server may be called before ``run`` is connected: ``deliver`` then raises
    `ChannelUnavailable`. A channel may have ``last_contact_at``, when its server has last answered or called.
    """

    name: str
    account: str
    capabilities: Capabilities

    async def run(self, inbox: Inbox) -> None:
        """
        Receive until cancelled.

        Raises:
            ChannelUnavailable: The link is lost. The supervisor calls ``run`` again after a back-off.
            ChannelAuthFailed, ChannelMisconfigured: The operator is needed; retried slowly.
        """
        ...

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """
        Send one message; idempotent for the same ``message.id`` as far as the server allows.

        ``uncertain`` must be awaited just before the point of no return (the request with the message's
        body, the DATA command): it makes durable that the server may have the message from now on.

        Raises:
            DeliveryUncertain: After ``uncertain``, and nobody knows.
            DeliveryFailed: The server refused for good.
            ChannelError: Anything else; the server does not have the message.
        """
        ...

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """
        Find out whether a message that may have been taken was taken. Only for `Redelivery.PROBE`.

        Returns None when the server surely does not have it.

        Raises:
            ChannelUnavailable: It cannot be said yet.
        """
        ...

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Show or hide that the bot is working; a hint that never raises `ChannelError`."""
        ...

    async def preview(self, session: SessionKey, text: str) -> None:
        """Show the unfinished answer; a hint that never raises `ChannelError`."""
        ...

    async def aclose(self) -> None:
        """Release all resources; called once, after ``run`` has ended."""
        ...


@runtime_checkable
class SupportsDirectMessages(Protocol):
    """A further ability: the channel can write to somebody who has not written first."""

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """
        The conversation with ``person`` (an address on this channel) alone; created if there is none.

        The same person and topic give the same conversation, also after a crash in between. A channel that
        keeps topics apart (a mail thread for each) has one conversation for each topic; others disregard it.

        Raises:
            ChannelUnavailable: Not now.
            ChannelError: Never: nobody has this address, or the person does not want to be written to.
        """
        ...

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """
        Return True if only ``person`` can read ``session`` now; False if that cannot be determined.

        Raises:
            ChannelUnavailable: The server could not be asked.
        """
        ...


@runtime_checkable
class SupportsLeaving(Protocol):
    """A further ability: the bot can leave the channel's conversations, or be removed from them."""

    async def is_in(self, session: SessionKey) -> bool:
        """Return True if the bot is in the room of ``session`` now. Raises `ChannelUnavailable`."""
        ...


@runtime_checkable
class SupportsHttp(Protocol):
    """A further ability: the channel answers requests at ``gateway.http.listen``."""

    def routes(self) -> Sequence[AbstractRouteDef]:
        """Return its routes; they are called whether or not `Channel.run` runs."""
        ...


@runtime_checkable
class SupportsRoomPolicy(Protocol):
    """A further ability: the channel has rules for single conversations."""

    def allowed_here(self, session: SessionKey, person: str) -> bool | None:
        """Return the conversation's own rule about ``person``, or None. Raises `ChannelUnavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class AccountFinding:
    """A finding of `squidbot check` in a part of an account; ``remedy`` says what to do, if anything."""

    part: str
    level: Literal["ok", "warn", "fail"]
    text: str
    remedy: str = ""


@runtime_checkable
class SupportsAccountFindings(Protocol):
    """A further ability: more than that it is connected can be checked of an account."""

    async def account_findings(self, *, running: bool) -> Sequence[AccountFinding]:
        """Check it without changing anything; ``running``: in a daemon. Raises `ChannelError`."""
        ...


@runtime_checkable
class SupportsRoomNames(Protocol):
    """A further ability: the channel's rooms, and the people in them, have names that people see."""

    def name_giver(self, conversation: str) -> str:
        """The address of who has set the name; empty if it is unknown."""
        ...

    def member_names(self, conversation: str) -> Mapping[str, str]:
        """The addresses of a room's members with the names that they use; empty if they are unknown."""
        ...

    def room_name(self, conversation: str) -> str:
        """The name of a room, as somebody in it has set it; empty if it is unknown."""
        ...

    async def people(self, conversation: str) -> Mapping[str, str]:
        """Return the names of a room's other people, by address. Raises `ChannelUnavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class FolderNews:
    """``count`` mails came into a folder, the first of them with a line each; ``mark``: where to go on."""

    lines: Sequence[str]
    count: int
    mark: str


@runtime_checkable
class SupportsFolders(Protocol):
    """A further ability: the account has folders with mails besides those that are answered."""

    async def new_in_folder(self, folder: str, mark: str, *, words: str = "") -> FolderNews:
        """
        Return what came into a folder since ``mark``, with these words in sender or subject; nothing is
        changed there. Without a mark it is the base line, without news. Raises `ChannelError`.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlaceRules:
    """
    The settings of one room, or of one person in private; empty texts: as everywhere.

    ``tools`` are those that may be used (None: all that there are); a ``*`` at the end of one stands for any
    text.
    """

    tools: Sequence[str] | None = None
    language: str = ""
    persona: str = ""
    pool: str = ""

    def permits(self, tool: str) -> bool:
        """Return True if a tool may be used."""
        return self.tools is None or any(
            tool.startswith(name[:-1]) if name.endswith("*") else tool == name for name in self.tools
        )


@runtime_checkable
class SupportsPlaceRules(Protocol):
    """A further ability: single rooms have settings of their own."""

    def place_rules(self, conversation: str) -> PlaceRules:
        """The settings of a room; no tools as long as they are not known."""
        ...


class AckState(StrEnum):
    """The progress of an accepted message."""

    RECEIVED = "received"
    """It is being worked on. Told again when it is taken up again after a crash or a wait."""
    DONE = "done"
    """It was answered: the answer is committed and on its way."""
    FAILED = "failed"
    """It was given up; an apology is on its way, or it was taken back and nothing is."""


@runtime_checkable
class SupportsAcknowledgements(Protocol):
    """
    A further ability: the channel can show a message's progress by a reaction; see
    `Capabilities.acknowledgements`.
    """

    async def acknowledge(self, session: SessionKey, context: MessageContext, stage: AckState) -> None:
        """
        Show the progress of a message of ``session``; ``context`` is its `InboundMessage.context`.

        A hint: it never raises `ChannelError`, no turn waits for it, it may be cancelled at every await, and
        any of them may be left out or told twice. Those of one message come in order, one after the other.
        Of a message that was taken back only its native id is left (`MessageContext.left_over`).
        """
        ...
