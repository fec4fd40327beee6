"""Operations on a real store and a real memory, and what they are asked about."""

from __future__ import annotations

import inspect

from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import Message
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_registry import find_operation
from gateway.routing.access import Access, Alias
from gateway.store.stores import NewOutbound, Pending
from tests.clock import EPOCH

ROOM = SessionKey("matrix", "!room:hs.test")


def inbound(number, session=ROOM, text="hello"):
    return InboundMessage(
        channel=session.channel,
        account="bot",
        native_id=f"$e{number}",
        session=session,
        sender=Sender(address="@alice:hs.test", verified=True),
        text=text,
        received_at=EPOCH,
    )


class Asked:
    """Calls operations by their keys as if they were methods."""

    def __init__(self, context):
        self.context = context
        self.call = context.call

    def __getattr__(self, key):
        def ask(*words, **options):
            bound = inspect.signature(find_operation(key).run).bind(None, *words, **options)
            return self.call(key, {name: one for name, one in bound.arguments.items() if name != "context"})

        return ask


class Bench:
    def __init__(self, store, memory, **options):
        self.store, self.memory = store, memory
        options.setdefault("access", Access([Alias("matrix", "@alice:hs.test")], {}))
        self.ask = Asked(OperationContext(store, memory, **options))

    async def accepted(self, *messages):
        rows = await self.store.inbox.accept("matrix", "bot", [Pending(message) for message in messages], {})
        return [row.id for row in rows]

    async def dead(self, number):
        [row] = await self.accepted(inbound(number))
        turn = await self.store.turns.claim(ROOM)
        await self.store.turns.dead_letter(
            turn, "the model said 400", [NewOutbound("matrix", "bot", ROOM, "sorry")]
        )
        return row

    async def talked(self, count):
        await self.memory.append_message(
            str(ROOM),
            *[
                Message(
                    role="user" if n % 2 == 0 else "assistant",
                    content=f"text {n}",
                    id=f"m{n}",
                    timestamp=EPOCH,
                )
                for n in range(count)
            ],
        )
