"""
The process in which faster-whisper transcribes, and which decodes the sound.

Before anything of others is loaded the process gives up the network and every file but its libraries and the
weights (`confinement`), so a sound file that breaks the decoder gets hold of nothing but itself. It ends when
its socket does, and with the daemon.

Traps: faster-whisper 1.2.1 does not work with av 18; ``local_files_only`` or it asks the Hugging Face Hub;
what it gives is a generator that listens while it is read.
"""

from __future__ import annotations

import base64
import io
import json
import os
import resource
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_core.child_process.confinement import library_paths
from agent_core.child_process.server import serve_engine
from agent_core.sandbox.priority import give_way

_MEMORY_BYTES = 4_000_000_000
_HZ = 16_000
_MOST_SECONDS_OVER = 5.0
_PACKAGES = ("agent_core", "faster_whisper", "ctranslate2", "av", "numpy", "onnxruntime", "tokenizers")


class _Engine:
    """The loaded model; one sound after the other."""

    def __init__(self, folder: str) -> None:
        if not (Path(folder) / "model.bin").is_file():
            raise FileNotFoundError(f"there is no model.bin in {folder}")
        from faster_whisper import WhisperModel  # noqa: PLC0415 - after the process was confined

        self._model = WhisperModel(folder, device="cpu", compute_type="int8", local_files_only=True)
        self._lock = threading.Lock()

    def listen(self, request: Mapping[str, Any], given_up: threading.Event) -> str:
        """The answer to one request, in the form of ``verbose_json``."""
        from faster_whisper import decode_audio  # noqa: PLC0415 - see above

        sound = decode_audio(io.BytesIO(base64.b64decode(request["sound"])), sampling_rate=_HZ)
        if len(sound) / _HZ > request["max_seconds"] + _MOST_SECONDS_OVER:
            raise ValueError("the sound is longer than its header says")
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


def main() -> None:
    """Serve the socket that is named on the command line, behind the folder with the weights."""
    give_way()
    folder = sys.argv[1]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    readable = [*library_paths(*_PACKAGES), folder]
    serve_engine(lambda: _Engine(folder).listen, readable=readable, memory_bytes=_MEMORY_BYTES)


if __name__ == "__main__":
    main()
