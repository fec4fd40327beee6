"""Checks voice: has a second of silence transcribed, and one word spoken."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from gateway.cli.check.check_report import CheckReport

if TYPE_CHECKING:
    from agent_core.llm.litellm.litellm_client import LiteLLMProcess
    from agent_core.llm.model_config import LLMSpec
    from agent_core.media.media_config import SpeakSettings, TranscribeSettings
    from agent_core.ports import Clock
    from gateway.settings import Settings
    from gateway.supervision.gateway import Gateway

_LIMIT_S = 120.0
_HZ = 8000
_WORD = "Hello."


def silence(seconds: float = 1.0) -> bytes:
    """A WAV file of silence."""
    data = bytes(2 * round(seconds * _HZ))
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _HZ, _HZ * 2, 2, 16)
    body = b"WAVE" + about + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


async def check_listening(report: CheckReport, settings: Settings, built: Gateway) -> None:
    """Test ``voice.transcribe``, if it is set."""
    if (wished := settings.voice.transcribe) is not None:
        with _report_outcome(report, "voice messages", "voice.transcribe", f"{wished.model} listened"):
            await listen_once(wished, settings.llm, built.clock, litellm=built.models.litellm)


async def check_speaking(report: CheckReport, settings: Settings, built: Gateway) -> None:
    """Test ``voice.speak``, if it is set."""
    if (wished := settings.voice.speak) is not None and wished.when != "never":
        with _report_outcome(report, "spoken answers", "voice.speak", f"{wished.model} spoke"):
            await speak_once(wished, settings.llm, built.clock, litellm=built.models.litellm)


async def listen_once(
    wished: TranscribeSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess
) -> None:
    """Transcribe a second of silence. Raises `ModelError` or `TimeoutError`: it failed."""
    from agent_core.media.media_client import build_transcriber  # noqa: PLC0415 - only where it is wished for
    from agent_core.media.transcript import Clip  # noqa: PLC0415 - likewise

    engine = build_transcriber(wished, spec, clock, litellm=litellm)
    sound = Clip(silence(), "sound.wav", "audio/wav", 1.0)
    await _within_limit(lambda: engine.transcribe(sound), engine.aclose)


async def speak_once(wished: SpeakSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess) -> None:
    """Have one word spoken. Raises `ModelError` or `TimeoutError`: it failed."""
    from agent_core.media.media_client import build_speaker  # noqa: PLC0415 - only where it is wished for

    voice = build_speaker(wished, spec, clock, litellm=litellm)
    await _within_limit(lambda: voice.speak(_WORD), voice.aclose)


async def _within_limit(work: Callable[[], Awaitable[object]], close: Callable[[], Awaitable[None]]) -> None:
    try:
        with anyio.fail_after(_LIMIT_S):
            await work()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await close()


@contextmanager
def _report_outcome(report: CheckReport, part: str, key: str, done: str) -> Iterator[None]:
    """Tell what came of the block, and which setting it is about."""
    began = anyio.current_time()
    try:
        yield
    except TimeoutError:
        report.fail(part, f"no answer within {_LIMIT_S:.0f} s", key)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        report.fail(part, str(error) or type(error).__name__, f"{key}; see docs/voice.md")
    else:
        report.ok(part, f"{done} within {anyio.current_time() - began:.1f} s")
