"""`squidbot send`: puts a message that answers nothing into the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agent_core.operation import Option, operation
from gateway.errors import NeedsDaemon
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext

if TYPE_CHECKING:
    from agent_core.messages import SessionKey


def _sent_text(answer: Mapping[str, Any]) -> str:
    told = "is on its way" if answer["running"] else "is sent when the daemon runs"
    return f"the message to {answer['to']} {told}"


@operation("send", writes=True, needs=("home", "settings"), reads="text", render=_sent_text)
async def send_message(
    context: OperationContext,
    to: str,
    text: Annotated[str, Option(help="The text, in Markdown (default: the standard input).")],
) -> dict[str, Any]:
    """
    Send a message from the bot. While the daemon is stopped, a Matrix message waits, and mail is refused.

    Args:
        to: owner, matrix:@person:server, matrix:#room:server, matrix:!room or email:person@domain.
    """
    from agent_core.messages import MessageContext, MessageNotes, OutboundKind
    from channels.split import split_markdown
    from gateway.routing.access import kinds_of
    from gateway.routing.conversations import scope_at
    from gateway.store.stores import NewOutbound

    whom = _owner_place(context) if to.strip() == "owner" else to.strip()
    kinds = kinds_of(whom) if whom.startswith("@") or ":" not in whom else []
    # An address alone is one on the only channel of its kind.
    names = [each for each in context.accounts if context.access.kind(each) in kinds]
    name, colon, place = (f"{names[0]}:{whom}" if len(names) == 1 else whom).partition(":")
    if not colon or not place or any(char.isspace() for char in place):
        raise RequestInvalid(
            f"{to!r} is not a destination; write owner, matrix:@person:server, matrix:#room:server, "
            "matrix:!room or email:person@domain"
        )
    account = context.accounts.get(name)
    if account is None:
        known = ", ".join(sorted(context.accounts)) or "none"
        raise RequestInvalid(f"there is no channel {name!r} that can send; enabled: {known}")
    parts = split_markdown(text, 16_000)
    if not parts:
        raise RequestInvalid("the text is empty; write what to send")
    session = await _place(context, name, place, topic=text.strip().splitlines()[0][:80])
    noted = MessageContext(notes=MessageNotes(scope=scope_at(context.access, session, place)))
    rows = await context.store.outbox.post(
        [
            NewOutbound(name, account, session, each, OutboundKind.MESSAGE, noted, remembered=True)
            for each in parts
        ]
    )
    return {"to": to, "outbox": [row.id for row in rows], "running": context.running}


def _owner_place(context: OperationContext) -> str:
    from gateway.routing.access import contact_rank

    names = sorted(context.accounts, key=lambda name: contact_rank(context.access.kind(name)))
    places = [f"{name}:{each}" for name in names for each in context.access.owner_addresses_on(name)]
    if not places:
        raise RequestInvalid("owner.aliases names no address on an enabled channel")
    return places[0]


async def _place(context: OperationContext, name: str, place: str, *, topic: str) -> SessionKey:
    from agent_core.messages import SessionKey
    from channels.base import ChannelError, SupportsDirectMessages
    from gateway.plugins import channel_kinds
    from gateway.store.model import is_too_long

    rules = channel_kinds()[context.access.kind(name)].addresses
    if rules.is_conversation(place):
        # Found, or made, when it is sent: that works without the daemon too.
        if is_too_long(session := SessionKey(name, place)):
            raise RequestInvalid(f"{place[:40]}… is too long for a person or a room")
        return session
    if rules.parse(place) is None:
        raise RequestInvalid(f"{place!r} is not an address on {name}; write it like {rules.example}")
    channel = context.channels.get(name)
    if channel is None and context.status is None:
        raise NeedsDaemon(f"{name} sends only while the daemon runs; start it with `squidbot run`")
    if not isinstance(channel, SupportsDirectMessages):
        raise RequestInvalid(
            f"{name} is not connected, or cannot start a conversation; squidbot status shows its state"
        )
    try:
        return await channel.direct_session(place, topic=topic)
    except ChannelError as error:
        raise RequestInvalid(f"a message to {place} is not possible: {error}") from error
