"""
What else people send from a phone, by an Element-like client that evaluates push rules: forwarded text, files, voice
notes, photos asked about in the next line. Each answer rings once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import Credentials, MatrixPeer, Synapse
from devservers.transcription import TranscriptionServer
from tests.daemon import Daemon
from tests.integration.element.client import Person
from tests.integration.test_everyday_by_mail import Assistant
from tests.integration.test_everyday_on_a_phone import settings
from tests.integration.test_voice_messages import VOICE
from tests.pictures import png
from tests.sounds import ogg_opus
from tests.unit.agent_core.tools.web.test_pdf import document

pytestmark = [pytest.mark.integration]
pytest.importorskip("pypdf")

PLAN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "How much is the rent": [("read_attachment", {"id": "?"})]
}


class Phone:
    """The owner's phone in one room with the bot."""

    def __init__(self, client: Person, room: str, bot: str, *, mention: bool) -> None:
        self.client, self.room, self.bot = client, room, bot
        self.mention = {"m.mentions": {"user_ids": [bot]}} if mention else {}

    def said(self) -> list[dict[str, Any]]:
        """What the bot has said here, each once."""
        newest = {
            one["id"]: one
            for one in self.client.seen
            if one["sender"] == self.bot and one["room"] == self.room
        }
        return [one for one in newest.values() if one["type"] == "m.room.message"]

    async def write(self, text: str) -> None:
        content = {"msgtype": "m.text", "body": text, **self.mention}
        await self.client.do("event", room=self.room, type="m.room.message", content=content)

    async def post(self, content: dict[str, Any], data: bytes) -> None:
        await self.client.do(
            "sendFile", room=self.room, content=content, base64=base64.b64encode(data).decode()
        )

    async def answered(self, before: int, count: int = 1) -> None:
        """So many answers have come since then; each has rung, and nothing else has."""
        with anyio.move_on_after(60):
            while sum("Done:" in one["content"].get("body", "") for one in self.said()[before:]) < count:
                await anyio.sleep(0.1)
        new = self.said()[before:]
        assert [one["rings"] for one in new] == [True] * count, [
            (one["content"], one["rings"]) for one in new
        ]


@asynccontextmanager
async def phone_of(
    modules: Path,
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    folder: Path,
    others: list[MatrixPeer],
) -> AsyncIterator[tuple[Phone, Assistant]]:
    bot, ann = fresh_credentials("bot"), fresh_credentials("ann")
    with (
        Assistant({text: list(calls) for text, calls in PLAN.items()}) as model,
        TranscriptionServer() as ears,
    ):
        configured = settings(synapse, bot, ann.user_id, model.api_base, ears.api_base)
        configured["llm"]["models"]["honest"]["vision"] = True
        configured["channels"]["matrix"]["allow_from"] = [one.user_id for one in others]
        with Daemon(folder / "home", configured) as daemon:
            await run_sync(daemon.up)
            async with Person.up(modules, synapse.url, ann) as client:
                await client.do("bootstrap", password=ann.password)
                invited = [bot.user_id, *(one.user_id for one in others)]
                room = await client.do("create", invite=invited, encrypted=not others)
                for one in others:
                    await run_sync(one.join, room)
                await client.do("joined", room=room, user=bot.user_id)
                yield Phone(client, room, bot.user_id, mention=bool(others)), model


@pytest.mark.parametrize("where", ["in private", "in a group"])
async def test_what_is_sent_from_a_phone_is_answered_and_rings_once(
    modules: Path,
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
    where: str,
) -> None:
    """In private each message has its answer; in a group what stands before a mention is looked at with it."""
    others = [] if where == "in private" else [fresh_user("bob")]
    async with phone_of(modules, synapse, fresh_credentials, tmp_path, others) as (phone, model):
        things = {
            "When shall we meet?": (
                {"msgtype": "m.text", "body": "Carol: shall we meet on Tuesday at ten?"},
                b"",
            ),
            "How much is the rent?": (
                {"msgtype": "m.file", "body": "lease.pdf", "info": {"mimetype": "application/pdf"}},
                document("The rent is 900 EUR", title="Lease"),
            ),
            "What did I say?": (
                {
                    "msgtype": "m.audio",
                    "body": "Voice message.ogg",
                    "info": {"mimetype": "audio/ogg"},
                    **VOICE,
                },
                ogg_opus(2.0, says="please feed the axolotl"),
            ),
            "What is on my photo?": (
                {"msgtype": "m.image", "body": "IMG_4711.png", "info": {"mimetype": "image/png"}},
                png(30, 20),
            ),
        }
        signs = ("Tuesday at ten", "The rent is 900 EUR", "feed the axolotl", "data:image/png")
        for (question, (content, data)), sign in zip(things.items(), signs, strict=True):
            before = len(phone.said())
            if data:
                await phone.post(content, data)
            else:
                await phone.client.do("event", room=phone.room, type="m.room.message", content=content)
            answers = 1 if others else 2
            if answers == 2:
                await phone.answered(before)
            await phone.write(question)
            await phone.answered(before, answers)
            assert question in json.dumps(model.asked[-1])
            assert sign in json.dumps(model.asked[-1])
