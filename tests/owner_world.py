"""What the owner is told on a real store, and a message that is kept back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from gateway.proactive.owner_alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import OutboxState
from gateway.store.stores import OutboxRow, Pending
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer

THREAD = SessionKey("email", "thread-" + "a" * 24, "alice@mail.test")


def inbound(number: int, **more: Any) -> InboundMessage:
    values: dict[str, Any] = {
        "channel": "email",
        "account": "bot@mail.test",
        "native_id": f"n{number}",
        "session": THREAD,
        "sender": Sender(address="alice@mail.test", verified=False),
        "text": f"pay {number}",
        "received_at": datetime(2026, 1, 1, tzinfo=UTC),
        "context": {"quarantine": "sender_not_verified", "subject": f"Bill `{number}`\n**now**"},
    }
    return InboundMessage(**values | more)


class Owner:
    """`OwnerAlerts` on a real store, and whom they reach."""

    def __init__(self, store: SqliteQueue) -> None:
        self.store = store
        self.clock = ManualClock()
        self.wakeups = Wakeups()
        self.target = OwnerContact(
            store.state,
            channels={"matrix": LoopbackChannel(LoopbackServer(), name="matrix")},
            wakeups=self.wakeups,
        )
        self.notes = OwnerAlerts(
            store=store,
            target=self.target,
            notifier=OwnerNotifier(store, self.target, self.clock),
            clock=self.clock,
            wakeups=self.wakeups,
        )
        self.notes.look_every_s = 0.01

    async def learn(self) -> None:
        room = SessionKey("matrix", "dm-@ann:hs.test")
        said = inbound(
            0,
            channel="matrix",
            session=room,
            sender=Sender(address="@ann:hs.test", verified=True),
            audience=Audience.DIRECT,
        )
        await self.target.learn(said)

    async def keep(self, *numbers: int) -> None:
        batch = [Pending(inbound(number), quarantine="sender_not_verified") for number in numbers]
        await self.store.inbox.accept("email", "bot@mail.test", batch, {})

    async def told(self) -> list[OutboxRow]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.notes.run)
            await anyio.sleep(0.15)
            with anyio.fail_after(60):
                while self.notes.state()["alerts_waiting"]:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        return list(reversed(await self.store.outbox.rows(states=[OutboxState.PENDING])))
