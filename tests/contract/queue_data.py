"""Messages, batches and short ways through a `Queue` for its tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from agent_core.models import Message
from gateway.store.stores import Completion, InboxRow, NewOutbound, OutboxRow, Pending, Queue, Step, Turn
from tests.clock import EPOCH

BOT = "@bot:hs.test"
ROOM = SessionKey("matrix", "!room:hs.test")
OTHER = SessionKey("matrix", "!other:hs.test")


def message(native_id: str, *, session: SessionKey = ROOM, **more: Any) -> InboundMessage:
    """A message whose text and context name it."""
    return InboundMessage(
        **{
            "channel": session.channel,
            "account": BOT,
            "native_id": native_id,
            "session": session,
            "sender": Sender(address="@alice:hs.test", name="Alice", verified=True),
            "text": f"text of {native_id}",
            "received_at": EPOCH,
            "audience": Audience.DIRECT,
            "context": {"route": {"event_id": native_id}},
            **more,
        }
    )


def pending(
    native_id: str,
    *,
    ignore: str | None = None,
    quarantine: str | None = None,
    alone: bool = False,
    **more: Any,
) -> Pending:
    """A message on its way into the store."""
    return Pending(message(native_id, **more), ignore, quarantine, alone)


async def accept(store: Queue, *native_ids: str, session: SessionKey = ROOM, **more: Any) -> list[InboxRow]:
    """Accept a batch; the position tells its size."""
    batch = [pending(native_id, session=session, **more) for native_id in native_ids]
    return await store.inbox.accept(session.channel, BOT, batch, {"next_batch": f"s{len(batch)}"})


async def claim(store: Queue, session: SessionKey = ROOM, *, merge: int = 1) -> Turn:
    """Claim what must be there."""
    turn = await store.turns.claim(session, merge=merge)
    assert turn is not None
    return turn


def out(text: str, *, session: SessionKey = ROOM, **more: Any) -> NewOutbound:
    """Something to send."""
    return NewOutbound(session.channel, BOT, session, text, **more)


def reply(
    *texts: str, session: SessionKey = ROOM, history: Sequence[Message] = (), **more: Any
) -> Completion:
    """An answer of one or more messages."""
    return Completion(outbound=[out(text, session=session) for text in texts], history=history, **more)


async def answer(store: Queue, turn: Turn, *texts: str) -> list[OutboxRow]:
    """Complete a turn with an answer and two lines of history."""
    lines = [
        Message(
            role="user", content=turn.head.message.text, id=f"{turn.id}.0", turn=turn.id, timestamp=EPOCH
        ),
        Message(role="assistant", content="yes", id=f"{turn.id}.1", turn=turn.id, timestamp=EPOCH),
    ]
    given = texts or (f"answer to {turn.head.message.native_id}",)
    return await store.turns.complete(turn, reply(*given, session=turn.session, history=lines))


async def answered(store: Queue, native_id: str, *texts: str, session: SessionKey = ROOM) -> list[OutboxRow]:
    """A message that has come and was answered; its unsent answers."""
    await accept(store, native_id, session=session)
    return await answer(store, await claim(store, session), *texts)


def step(number: int, *, result: dict[str, Any] | None = None, kind: str = "tool", digest: str = "d") -> Step:
    """A step of a turn."""
    return Step(number, kind, digest, {"name": f"tool{number}"}, result)
