"""
The process in which Piper speaks, and which encodes the sound as Opus in Ogg.

Before anything of others is loaded the process gives up the network and every file but its libraries and the
voice (`confinement`). It ends when its socket does, and with the daemon.

Trap: Piper logs what it speaks, so its logger is silenced.
"""

from __future__ import annotations

import base64
import json
import logging
import resource
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_core.child_process.confinement import library_paths
from agent_core.child_process.server import serve_engine
from agent_core.sandbox.priority import give_way
from agent_core.voice.opus_child import PACKAGES, opus_of

_MEMORY_BYTES = 2_000_000_000
_HZ = 24_000


class _Engine:
    """The loaded voice; one text after the other."""

    def __init__(self, model: str) -> None:
        import soundfile  # noqa: F401, PLC0415 - loaded before the first text waits for it
        from piper import PiperVoice  # noqa: PLC0415 - after the process was confined

        logging.disable(logging.CRITICAL)
        self._voice = PiperVoice.load(model)
        self._lock = threading.Lock()

    def speak(self, request: Mapping[str, Any], given_up: threading.Event) -> str:
        """The answer to one request: the sound, and what memory the process has taken so far."""
        with self._lock:
            sound = self._encoded(request["text"], given_up)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return json.dumps({"sound": base64.b64encode(sound).decode(), "memory_mb": round(peak_mb)})

    def _encoded(self, text: str, given_up: threading.Event) -> bytes:
        import numpy as np  # noqa: PLC0415 - see above

        parts, rate = [], _HZ
        for sentence in self._voice.synthesize(text):
            if given_up.is_set():
                break
            parts.append(sentence.audio_float_array)
            rate = sentence.sample_rate
        return opus_of(np.concatenate(parts or [np.zeros(_HZ // 10)]), rate)  # or nobody can read the text


def main() -> None:
    """Serve the socket that is named on the command line, behind the file of the voice."""
    give_way()
    model = sys.argv[1]
    libraries = library_paths("agent_core", "piper", "onnxruntime", *PACKAGES)
    serve_engine(
        lambda: _Engine(model).speak,
        readable=[*libraries, str(Path(model).parent)],
        memory_bytes=_MEMORY_BYTES,
    )


if __name__ == "__main__":
    main()
