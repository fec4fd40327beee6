"""
The process that is killed: a loopback channel and the smallest possible gateway, which answers every message.

Its database is one append-only file: a line per accepted message or per mark of an answer. Arguments: the
server's folder, the file, the point to die at (with ``#n``: the nth time), the defect to have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import anyio

from agent_core.messages import InboundMessage, OutboundMessage
from channels.base import ChannelUnavailable, LinkState
from tests.doubles.loopback import FileLoopbackServer, LoopbackChannel


class Journal:
    """An `Inbox` on a file, and the answers that are still owed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.messages: dict[str, InboundMessage] = {}
        self.sent: set[str] = set()
        self.next: str | None = None
        self.changed = anyio.Event()
        for line in path.read_text().splitlines() if path.exists() else ():
            self._apply(json.loads(line))

    def _apply(self, record: dict) -> None:
        for text in record.get("messages", ()):
            message = InboundMessage.model_validate_json(text)
            self.messages.setdefault(message.native_id, message)
        self.next = record.get("next", self.next)
        self.sent.update(record.get("sent", ()))
        self.changed.set()

    def write(self, record: dict) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, json.dumps(record).encode() + b"\n")
        os.close(descriptor)
        self._apply(record)

    async def accept(self, messages, positions=None):
        self.write({"messages": [message.model_dump_json() for message in messages], **(positions or {})})

    async def position(self, name):
        return self.next

    def report(self, state: LinkState, detail: str = "", **facts):
        pass

    async def delivered_id(self, provider_id):
        return None

    async def ignored_session(self, native_id, sender):
        return None

    async def find_sent_message(self, outbound_id):
        return None

    async def unconfirmed_sends(self):
        return ()


class AcknowledgesFirst(LoopbackChannel):
    """The negative control upstream."""

    async def _receive(self, inbox, link):
        server, accept = self._server, inbox.accept

        async def acknowledge_first(messages, positions=None):
            await server.acknowledge(link, int(positions["next"]))
            self._point("acknowledged_too_early")
            await accept(messages, positions)

        inbox.accept = acknowledge_first
        await super()._receive(inbox, link)


async def main() -> None:
    folder, journal_path, where, defect = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    name, _, count = where.partition("#")
    left = int(count or 1)

    def point(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    journal = Journal(journal_path)
    make = AcknowledgesFirst if defect == "acknowledges_first" else LoopbackChannel
    channel = make(FileLoopbackServer(folder), batch=3, point=point)

    async def answer() -> None:
        while True:
            journal.changed = anyio.Event()
            for native_id, message in list(journal.messages.items()):
                if native_id in journal.sent:
                    continue
                key = f"answer-{native_id}" if defect != "new_keys" else os.urandom(8).hex()
                outbound = OutboundMessage(
                    id=key,
                    channel="loopback",
                    account="bot",
                    session=message.session,
                    text=f"re: {message.text}",
                    created_at=message.received_at,
                )
                try:
                    await channel.deliver(outbound, uncertain=anyio.lowlevel.checkpoint)
                except ChannelUnavailable:
                    await anyio.sleep(0.001)
                    break
                journal.write({"sent": [native_id]})
            else:
                await journal.changed.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        await channel.run(journal)


anyio.run(main)
