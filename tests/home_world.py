"""A home folder with something of everything in it, for tests of backups and of forgetting."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    Sender,
    SessionKey,
)
from agent_core.models import MemoryScope, Message, ScopeKind, Usage
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, NewOutbound, Pending, Step
from gateway.system.home import Home, open_home
from gateway.turns.user_input import question_text
from tests.clock import EPOCH, ManualClock

ALICE = SessionKey("matrix", "!alice:hs.test")
BOB = SessionKey("matrix", "!bob:hs.test")
ROOM = SessionKey("matrix", "!room:hs.test")
BOT = "@bot:hs.test"
CONFIG = """\
owner: {aliases: ["@alice:hs.test"]}
agents: {heartbeat: {enabled: false}}
channels:
  matrix:
    enabled: true
    homeserver: "http://127.0.0.1:9"
    user_id: "@bot:hs.test"
    password: "c0rrect-horse"
    allow_from: ["@alice:hs.test", "@bob:hs.test"]
"""


@dataclass
class Filled:
    """A home, and the numbers of the messages that were put into it."""

    home: Home
    clock: ManualClock

    async def say(
        self,
        session: SessionKey,
        sender: str,
        text: str,
        answer: str | None,
        *,
        native_id: str,
        within: SessionKey | None = None,
        **more,
    ) -> int:
        """One message, and its answer if there is one: committed, filed and sent."""
        group = session == ROOM
        message = InboundMessage(
            channel="matrix",
            account=BOT,
            native_id=native_id,
            session=session,
            sender=Sender(address=sender, verified=True),
            text=text,
            received_at=self.clock.now(),
            audience=Audience.GROUP if group else Audience.DIRECT,
            **more,
        )
        scope = (
            f"room:{session}"
            if group
            else "owner"
            if within or sender == "@alice:hs.test"
            else f"person:{sender}"
        )
        async with await SqliteQueue.open(self.home.database, clock=self.clock) as store:
            [row] = await store.inbox.accept(
                "matrix", BOT, [Pending(message, session=within)], {"next_batch": f"s{native_id}"}
            )
            if answer is None:
                return row.id
            worked_on = within or session
            turn = await store.turns.claim(worked_on)
            assert turn is not None
            await store.turns.record_step_start(
                turn, Step(0, "tool", hashlib.sha256(b"x").hexdigest(), {"said": text}, None)
            )
            lines = (
                Message(
                    role="user",
                    content=question_text([message]) if message.background else text,
                    id=f"{turn.id}.0",
                    turn=turn.id,
                    sender=sender,
                    scope=scope,
                    timestamp=self.clock.now(),
                    attachments=message.attachments,
                ),
                Message(
                    role="assistant",
                    content=answer,
                    id=f"{turn.id}.1",
                    turn=turn.id,
                    scope=scope,
                    timestamp=self.clock.now(),
                ),
            )
            await store.turns.complete(
                turn,
                Completion(
                    history=lines,
                    outbound=(NewOutbound("matrix", BOT, session, answer),),
                    usage=Usage(prompt_tokens=7, calls=1, model="m"),
                ),
            )
            memory = JsonlMemory(self.home.root, clock=self.clock)
            await memory.append_message(str(worked_on), *lines, durable=True)
            await store.journal.delete_filed_lines([line.id for line in await store.journal.lines(worked_on)])
            for out in await store.outbox.next_sends("matrix", BOT, busy=(), limit=5):
                await store.outbox.sending(out)
                await store.outbox.record_send(out, f"$out{out.id}")
            return row.id

    def attach(self, content: bytes, name: str) -> Attachment:
        """A file of a message."""
        digest = hashlib.sha256(content).hexdigest()
        path = f"attachments/{digest[:2]}/{digest}.txt"
        (self.home.root / path).parent.mkdir(exist_ok=True)
        (self.home.root / path).write_bytes(content)
        return Attachment(
            name=name, media_type="text/plain", size_bytes=len(content), path=path, sha256=digest
        )


async def fill(root: Path) -> Filled:
    """Alice (the owner) and Bob, each alone with the bot and both in a room."""
    home = open_home(root)
    home.config_file.write_text(CONFIG)
    home.config_file.chmod(0o600)
    clock = ManualClock()
    filled = Filled(home, clock)
    memory = JsonlMemory(root, clock=clock)
    await filled.say(ALICE, "@alice:hs.test", "I like tea", "noted: tea", native_id="$a1")
    await filled.say(BOB, "@bob:hs.test", "I like rum", "noted: rum", native_id="$b1")
    await filled.say(ROOM, "@alice:hs.test", "hello room", "hello alice", native_id="$r1")
    await filled.say(ROOM, "@bob:hs.test", "rum for all", "rum it is", native_id="$r2")
    await memory.save_global_memory(
        MemoryScope(ScopeKind.OWNER), "likes tea", session_id=str(ALICE), turn="1"
    )
    await memory.save_consolidation(str(ALICE), summary="They spoke of tea.", cursor=1)
    (root / "workspace" / "HEARTBEAT.md").write_text("- look at the kettle\n")
    (root / "workspace" / "run.sh").write_text("#!/bin/sh\n")
    (root / "workspace" / "run.sh").chmod(0o700)
    filled.attach(b"a file", "a.txt")
    state = root / "state" / "matrix"
    state.mkdir()
    for name in ("pickle_key", "crypto-0123.db", "session.json", "cross_signing.json", "verified.json"):
        (state / name).write_text(f"DEVICE-{name}")
    (root / "state" / "email").mkdir()
    (root / "state" / "email" / "answer-limits.json").write_text(json.dumps({"at": EPOCH.isoformat()}))
    return filled


def tree(root: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
