"""Operations of the console's chat: the owner's conversation there, by the way of a program with a token."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from agent_core.models import Message
from agent_core.operation import operation
from gateway.errors import GatewayError
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.operations.token_operations import find_endpoint, find_person

if TYPE_CHECKING:
    from channels.api.channel import ApiChannel

_NAME = "console"
_ANSWER_S = 20.0
"""The time for which a form waits for the answer; a later one appears on the page."""
_MAX_CHARS = 100_000
_SHOWN, _LOOKED_THROUGH = 50, 200


class NotSent(GatewayError):
    """The message was not accepted."""

    exit_code = 75


@operation("chat conversation", writes=False)
async def show_chat(context: OperationContext) -> dict[str, Any]:
    """
    Show the newest messages of the owner's conversation in the console, as they were said: with commands,
    questions about tools, apologies and reminders, which the history does not have, and, ``open``, those that
    are not answered yet.

    ``after`` changes whenever something is said. Raises ConfigInvalid: there is no endpoint.
    """
    from gateway.operations.operation_views import message_line
    from gateway.store.states import InboxState

    channel, person = await _endpoint_and_owner(context)
    key = channel.session_of(person, _NAME)
    # First what is on its way into the history, so that nothing is missing between the two.
    late = [line.message for line in await context.store.journal.lines(key)]
    total = (await context.memory.load_history(str(key), max_messages=1)).total
    page = await context.memory.load_segment(str(key), start=max(0, total - _SHOWN), max_messages=_SHOWN)
    filed = {message.id for message in page.messages}
    said = [*page.messages, *(message for message in late if message.id not in filed)]
    rows = await context.store.inbox.rows(session=key, limit=_SHOWN)
    filed_turns = {message.turn for message in said}
    beside = [row for row in rows if row.turn not in filed_turns]
    filed_rows = {row.id for row in rows} - {row.id for row in beside}
    sent = [
        row
        for row in await context.store.outbox.rows(limit=_LOOKED_THROUGH)
        if _has_no_line(row.message, key) and row.inbox_id not in filed_rows
    ]
    answered = {row.inbox_id for row in sent}
    waiting = {row.id for row in beside if row.state in (InboxState.READY, InboxState.RUNNING)}
    said += [
        Message(role="user", content=row.message.text, timestamp=row.accepted_at, id=str(row.id))
        for row in beside
        if row.id in answered | waiting
    ]
    said += [
        Message(role="assistant", content=each.message.text, timestamp=each.message.created_at)
        for each in sent
    ]
    said.sort(key=lambda message: message.timestamp or datetime.min.replace(tzinfo=UTC))
    shown = [each for each in said if each.role in ("user", "assistant")][-_SHOWN:]
    open_ids = set(map(str, waiting))
    newest = [each[0].id if each else 0 for each in (rows, sent)]
    return {
        "session": str(key),
        "messages": [{**message_line(each), "open": each.id in open_ids} for each in shown],
        "after": ".".join(map(str, (page.total, *newest, len(waiting)))),
    }


def _has_no_line(message: OutboundMessage, session: SessionKey) -> bool:
    """Return True for what was said in a conversation besides the answers of its history."""
    is_answer = message.kind is OutboundKind.REPLY and not message.notes.is_command
    return message.session == session and bool(message.text) and not is_answer and not message.remembered


@operation("chat say", writes=True, done="Sent.")
async def say(context: OperationContext, text: str, after: str = "") -> dict[str, Any]:
    """
    Send a message of the owner, and wait a while for its answer.

    Args:
        text: The message.
        after: What the page showed when it was written: the same text after the same is sent once.

    Raises:
        RequestInvalid: It is empty or too long.
        NotSent: It is not known whether it was accepted; the same form may be sent again.
    """
    from channels.api.channel import KeyReused, TooManyRequests
    from channels.api.request import RequestWords
    from channels.api.token_store import ApiToken
    from channels.base import ChannelUnavailable

    if not text.strip():
        raise RequestInvalid("write something first")
    if len(text) > _MAX_CHARS:
        raise RequestInvalid(f"a message has at most {_MAX_CHARS:,} characters")
    channel, person = await _endpoint_and_owner(context)
    digest, key = _digest(text), _digest(f"{after} {text}")
    words = RequestWords(text, (), (), _NAME, stream=False, digest=digest[:16])
    token = ApiToken(_NAME, person, _digest(f"{_NAME} {person}"), datetime.now(UTC))
    try:
        async with channel.ask(token, key[:32], words) as asked:
            with anyio.move_on_after(_ANSWER_S):
                async for _ in channel.watch(asked):
                    pass
            return {"session": str(asked.session), "is_answered": asked.answers}
    except (ChannelUnavailable, KeyReused, TooManyRequests) as error:
        raise NotSent(f"{error}; send it again") from error


async def _endpoint_and_owner(context: OperationContext) -> tuple[ApiChannel, str]:
    from channels.api.channel import ApiChannel

    name = find_endpoint(context)
    channel = context.channels.get(name)
    if not isinstance(channel, ApiChannel):
        raise context.missing(f"account {name!r}")
    return channel, await find_person(context, "owner")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
