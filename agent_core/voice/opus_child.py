"""
The process that encodes a provider's WAV or MP3 as Opus in Ogg.

Before anything of others is loaded the process gives up the network and every file but its libraries
(`confinement`), so a sound that breaks the decoder gets hold of nothing but itself. It ends when its socket
does, and with the daemon.

Trap: Opus knows five rates alone; other sound is brought to 24,000 Hz by its spectrum.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Mapping
from typing import Any

from agent_core.child_process.confinement import library_paths
from agent_core.child_process.server import Work, serve_engine

PACKAGES = ("numpy", "soundfile", "_soundfile_data")
"""What making Opus needs to read."""
_MEMORY_BYTES = 1_500_000_000
_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
_HZ = 24_000
_MOST_SECONDS = 600


def opus_of(samples: Any, rate: int) -> bytes:
    """Encode samples of one channel, from -1 to 1, as Opus in Ogg."""
    import numpy as np  # noqa: PLC0415 - after the process was confined
    import soundfile  # noqa: PLC0415 - likewise

    if rate not in _RATES:
        wanted = max(1, round(len(samples) * _HZ / rate))
        samples = np.fft.irfft(np.fft.rfft(samples), wanted) * (wanted / len(samples))
        rate = _HZ
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1).astype("float32"), rate, format="OGG", subtype="OPUS")
    return file.getvalue()


def _converted(request: Mapping[str, Any], _: threading.Event) -> str:
    """The answer to one request: the sound as Opus in Ogg."""
    import soundfile  # noqa: PLC0415 - after the process was confined

    with soundfile.SoundFile(io.BytesIO(base64.b64decode(request["sound"]))) as file:
        samples = file.read(_MOST_SECONDS * file.samplerate + 1, dtype="float32", always_2d=True)
        if not 0 < len(samples) <= _MOST_SECONDS * file.samplerate:
            raise ValueError("it is empty, or lasts more than ten minutes")
        return base64.b64encode(opus_of(samples.mean(axis=1), file.samplerate)).decode()


def _load() -> Work:
    import numpy as np  # noqa: F401, PLC0415 - loaded before the first sound waits for it
    import soundfile  # noqa: F401, PLC0415 - likewise

    return _converted


def main() -> None:
    """Serve the socket that is named on the command line."""
    serve_engine(_load, readable=library_paths("agent_core", *PACKAGES), memory_bytes=_MEMORY_BYTES)


if __name__ == "__main__":
    main()
