"""
The process in which faster-whisper listens, and in which sound is decoded.

Before anything of others is loaded the process gives up the network and every file but its libraries and the
weights (`confinement`), so a sound file that breaks the decoder gets hold of nothing but itself. It ends when
its socket does, and with the daemon.

Traps: faster-whisper 1.2.1 does not work with av 18; ``local_files_only`` or it asks the Hugging Face Hub;
what it gives is a generator that listens while it is read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from agent_core.llm.litellm.confinement import confine, die_with_parent, library_paths, limit_resources
from agent_core.llm.litellm.frames import encode_frame
from agent_core.llm.litellm.worker_server import WorkerServer
from agent_core.llm.openai_format import Piece

__all__ = ["main"]

_MEMORY_BYTES = 4_000_000_000
_HZ = 16_000
_MOST_SECONDS_OVER = 5.0
_PACKAGES = ("agent_core", "faster_whisper", "ctranslate2", "av", "numpy", "onnxruntime", "tokenizers")


class _Engine:
    """The loaded model; one sound after the other."""

    def __init__(self, folder: str) -> None:
        from faster_whisper import WhisperModel  # noqa: PLC0415 - after the process was confined

        self._model = WhisperModel(folder, device="cpu", compute_type="int8", local_files_only=True)
        self._lock = threading.Lock()

    def listen(self, request: Mapping[str, Any], given_up: threading.Event) -> str:
        """The answer to one request, in the form of ``verbose_json``."""
        from faster_whisper import decode_audio  # noqa: PLC0415 - see above

        sound = decode_audio(io.BytesIO(base64.b64decode(request["sound"])), sampling_rate=_HZ)
        if len(sound) / _HZ > request["max_seconds"] + _MOST_SECONDS_OVER:
            raise ValueError("the sound is longer than its head says")
        with self._lock:
            segments, about = self._model.transcribe(
                sound,
                language=request["language"] or None,
                condition_on_previous_text=False,
                vad_filter=True,
            )
            told = []
            for one in segments:
                if given_up.is_set():
                    break
                names = ("text", "start", "end", "avg_logprob", "no_speech_prob", "compression_ratio")
                told.append({name: getattr(one, name) for name in names})
        text = "".join(one["text"] for one in told)
        memory_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        answer = {"text": text, "language": about.language, "segments": told, "memory_mb": memory_mb}
        return json.dumps(answer, default=float)


def _answers_of(engine: _Engine) -> Any:
    async def answers(frame: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        given_up = threading.Event()
        try:
            yield Piece(text=await asyncio.to_thread(engine.listen, frame["request"], given_up))
        finally:
            given_up.set()

    return answers


async def _serve(link: socket.socket, engine: _Engine, told: Mapping[str, Any]) -> None:
    reader, writer = await asyncio.open_connection(sock=link)
    server = WorkerServer(reader, writer, _answers_of(engine))
    with contextlib.suppress(OSError):
        await server.say({"ready": told})
        await server.serve()


def main() -> None:
    """Serve the socket that is named on the command line, behind the folder with the weights."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the daemon, which drains
        signal.signal(number, signal.SIG_IGN)
    limit_resources(memory_bytes=_MEMORY_BYTES)
    folder, link = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    began = time.monotonic()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    gave = confine([*library_paths(*_PACKAGES), folder], network=False)
    try:
        if not (Path(folder) / "model.bin").is_file():
            raise FileNotFoundError(f"there is no model.bin in {folder}")  # noqa: TRY301 - told like the rest
        engine = _Engine(folder)
    except BaseException as error:
        link.sendall(encode_frame({"broken": f"{type(error).__name__}: {error}"[:500]}))
        raise
    told = {**gave, "load_s": round(time.monotonic() - began, 2)}
    asyncio.run(_serve(link, engine, told))
    os._exit(0)  # threads that still listen are not waited for


if __name__ == "__main__":
    main()
