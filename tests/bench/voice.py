"""
What listening adds to a turn: from the accepted voice message to the committed answer, beside a typed one, with a
provider and a model that take no time.

``python -m tests.bench.voice`` prints one JSON object; `measure` runs that as a process of its own. A typed message,
a voice message of a minute, and the bare request to the stand-in provider take turns.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from agent_core.messages import InboundMessage, Sender, SessionKey
from channels.attachments import AttachmentStore
from devservers.transcription import TranscriptionServer
from gateway.app import Overrides, build
from gateway.observability.logs import configure_logs
from gateway.settings import Settings
from gateway.store.stores import Pending
from gateway.system.home import open_home
from tests.bench.rig import Rig, in_child
from tests.bench.table import Figure, Goal, median, share
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.sounds import ogg_opus

_WARM_UP = 3


def measure(rig: Rig) -> list[Figure]:
    """The figures of one run in a clean process."""
    found = in_child("tests.bench.voice", json.dumps({"turns": 10 if rig.quick else 60}))
    floor = share(found["provider"], 0.5)
    more = [spoken - typed for spoken, typed in zip(found["spoken"], found["typed"], strict=True)]
    return [
        Figure(
            "transcribing a minute, beyond the provider's time: p50",
            max(0.0, median(more) - floor),
            "ms",
            Goal("<", 50.0),
            floor=floor,
            floor_is="the bare request",
        ),
        Figure("a spoken turn: p50", share(found["spoken"], 0.5), "ms"),
    ]


async def run(turns: int) -> dict[str, Any]:
    """Milliseconds of typed turns, spoken turns, and of the bare request."""
    configure_logs("error")
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder, TranscriptionServer() as provider:
        return await _run(Path(folder), provider, turns)


async def _run(folder: Path, provider: TranscriptionServer, turns: int) -> dict[str, Any]:
    home = open_home(folder / "home")
    settings = Settings.model_validate(
        {
            "llm": {
                "providers": {"ears": {"api_base": provider.api_base}},
                "models": {"echo": {"model": "demo/echo"}},
                "pools": {"main": ["echo"]},
            },
            "voice": {"transcribe": {"provider": "ears", "model": "openai/whisper-1"}},
        }
    )
    server, files = LoopbackServer(), AttachmentStore(home.root)
    channels = {"loopback": (LoopbackChannel(server), "each")}
    built = await build(settings, home, Overrides(channels=channels, allow_from={"loopback": ("alice",)}))
    took: dict[str, list[float]] = {"typed": [], "spoken": [], "provider": []}
    async with aiohttp.ClientSession() as http, anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        while not built.supervisor.all_up:
            await anyio.sleep(0.01)
        for number in range(_WARM_UP + turns):
            sound = ogg_opus(60, says=f"number {number}")
            file = await files.save("Voice message.ogg", "audio/ogg", _pieces(sound))
            for kind in ("typed", "spoken", "provider"):
                begun = time.perf_counter()
                if kind == "provider":
                    form = aiohttp.FormData()
                    form.add_field("file", io.BytesIO(sound), filename="sound.ogg")
                    async with http.post(f"{provider.api_base}/audio/transcriptions", data=form) as answer:
                        await answer.read()
                else:
                    answers = len(server.delivered) + 1
                    more = (
                        {"attachments": (file,), "context": {"spoken": [file.sha256]}}
                        if kind == "spoken"
                        else {}
                    )
                    await _say(built, f"{kind} {number}", "" if more else "hello", more)
                    await server.answers(answers)
                if number >= _WARM_UP:
                    took[kind].append((time.perf_counter() - begun) * 1000)
        built.stop()
    return took


async def _say(built: Any, native_id: str, text: str, more: dict[str, Any]) -> None:
    message = InboundMessage(
        channel="loopback",
        account="bot",
        native_id=native_id,
        session=SessionKey("loopback", "alice"),
        sender=Sender(address="alice", verified=True),
        text=text,
        received_at=datetime.now(UTC),
        **more,
    )
    await built.store.inbox.accept("loopback", "bot", [Pending(message)], {})


async def _pieces(content: bytes) -> Any:
    yield content


if __name__ == "__main__":
    print(json.dumps(anyio.run(run, json.loads(sys.argv[1])["turns"])))
