"""Whether voice messages would be understood: a second of silence is listened to."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import anyio

from gateway.cli.check.report import Report, Verdict

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.supervision.gateway import Gateway

__all__ = ["check_listening", "silence"]

_LIMIT_S = 120.0
_HZ = 8000


def silence(seconds: float = 1.0) -> bytes:
    """A WAV file in which nobody speaks."""
    data = bytes(2 * round(seconds * _HZ))
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _HZ, _HZ * 2, 2, 16)
    body = b"WAVE" + about + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


async def check_listening(report: Report, settings: Settings, built: Gateway) -> None:
    """Ask what makes text of speech, if anything is to; nothing is said otherwise."""
    wished = settings.voice.transcribe
    if wished is None:
        return
    from agent_core.voice.factory import transcriber  # noqa: PLC0415 - only where it is wished for
    from agent_core.voice.transcript import Clip  # noqa: PLC0415 - likewise

    part, began = "voice messages", anyio.current_time()
    engine = transcriber(wished, settings.llm, built.clock, litellm=built.models.litellm)
    try:
        with anyio.fail_after(_LIMIT_S):
            await engine.transcribe(Clip(silence(), "sound.wav", "audio/wav", 1.0))
    except TimeoutError:
        report.add(part, Verdict.FAILED, f"no transcript within {_LIMIT_S:.0f} s", "voice.transcribe")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        told = str(error) or type(error).__name__
        report.add(part, Verdict.FAILED, told, "voice.transcribe; see docs/voice.md")
    else:
        took_s = anyio.current_time() - began
        report.add(part, Verdict.OK, f"{wished.model} listened within {took_s:.1f} s")
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await engine.aclose()
