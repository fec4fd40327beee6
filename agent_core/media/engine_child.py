"""
The process of one engine: faster-whisper, Piper, or the encoder of Opus; ``engine_child NAME [FILE] SOCKET``.
It gives up the network and all files but its libraries and FILE (`confinement`) before foreign code loads.
Requests and answers are JSON objects with sounds in base64. Traps: faster-whisper 1.2.1 fails with av 18,
asks the Hugging Face Hub without ``local_files_only``, and works while its generator is read; Piper logs what
it speaks; Opus knows five rates.
"""

# ruff: noqa: PLC0415 - what is of others is imported after the process was confined

from __future__ import annotations

import base64
import io
import json
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_core.children.process_tree import lower_priority
from agent_core.children.service_child import Work, serve_engine
from agent_core.children.service_confinement import library_paths

_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
_OPUS_HZ = 24_000
_WHISPER_HZ = 16_000
_MAX_CONVERTED_S = 600
_MAX_SECONDS_OVER = 5.0
"""A sound may be longer by this than its header says: what a decoder adds."""
_Answer = Callable[[Mapping[str, Any], threading.Event], Mapping[str, Any]]


def _load_whisper(folder: str) -> _Answer:
    """Load the model in a folder; it answers with the JSON of ``verbose_json``, one sound after another."""
    if not (Path(folder) / "model.bin").is_file():
        raise FileNotFoundError(f"there is no model.bin in {folder}")
    from faster_whisper import WhisperModel, decode_audio

    model = WhisperModel(folder, device="cpu", compute_type="int8", local_files_only=True)

    def transcribe(request: Mapping[str, Any], given_up: threading.Event) -> Mapping[str, Any]:
        sound = decode_audio(io.BytesIO(base64.b64decode(request["sound"])), sampling_rate=_WHISPER_HZ)
        if len(sound) / _WHISPER_HZ > request["max_seconds"] + _MAX_SECONDS_OVER:
            raise ValueError("the sound is longer than its header says")
        segments, about = model.transcribe(
            sound, language=request["language"] or None, condition_on_previous_text=False, vad_filter=True
        )
        names = ("text", "start", "end", "avg_logprob", "no_speech_prob", "compression_ratio")
        parts: list[dict[str, Any]] = []
        for segment in segments:
            if given_up.is_set():
                break
            parts.append({name: getattr(segment, name) for name in names})
        text = "".join(part["text"] for part in parts)
        return {"text": text, "language": about.language, "segments": parts}

    return transcribe


def _load_piper(model: str) -> _Answer:
    """Load the voice in a file; it answers with the sound of a text as Opus in Ogg."""
    import numpy as np
    import soundfile  # noqa: F401 - loaded before the first text waits for it
    from piper import PiperVoice

    logging.disable(logging.CRITICAL)
    voice = PiperVoice.load(model)

    def speak(request: Mapping[str, Any], given_up: threading.Event) -> Mapping[str, Any]:
        parts, rate = [], _OPUS_HZ
        for sentence in voice.synthesize(request["text"]):
            if given_up.is_set():
                break
            parts.append(sentence.audio_float_array)
            rate = sentence.sample_rate
        # Without a part it is a text that cannot be spoken.
        return {"sound": _encode_opus(np.concatenate(parts or [np.zeros(_OPUS_HZ // 10)]), rate)}

    return speak


def _load_opus(_: str) -> _Answer:
    """Load the encoder; it answers with a WAV or MP3 as Opus in Ogg."""
    import numpy as np  # noqa: F401 - loaded before the first sound waits for it
    import soundfile

    def convert(request: Mapping[str, Any], _: threading.Event) -> Mapping[str, Any]:
        with soundfile.SoundFile(io.BytesIO(base64.b64decode(request["sound"]))) as file:
            most = _MAX_CONVERTED_S * file.samplerate
            samples = file.read(most + 1, dtype="float32", always_2d=True)
            if not 0 < len(samples) <= most:
                raise ValueError("it is empty, or lasts more than ten minutes")
            return {"sound": _encode_opus(samples.mean(axis=1), file.samplerate)}

    return convert


def _encode_opus(samples: Any, rate: int) -> str:
    """Encode samples of one channel, from -1 to 1; another rate is brought to 24,000 Hz by its spectrum."""
    import numpy as np
    import soundfile

    if rate not in _OPUS_RATES:
        count = max(1, round(len(samples) * _OPUS_HZ / rate))
        samples = np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples))
        rate = _OPUS_HZ
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1).astype("float32"), rate, format="OGG", subtype="OPUS")
    return base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True, slots=True)
class _Engine:
    load: Callable[[str], _Answer]
    packages: tuple[str, ...]
    memory_bytes: int
    parent_is_readable: bool = False
    """A voice has a second file next to it."""


_SOUND_PACKAGES = ("agent_core", "numpy", "soundfile", "_soundfile_data")
_ENGINES = {
    "whisper": _Engine(
        _load_whisper,
        ("agent_core", "faster_whisper", "ctranslate2", "av", "numpy", "onnxruntime", "tokenizers"),
        4_000_000_000,
    ),
    "piper": _Engine(_load_piper, ("piper", "onnxruntime", *_SOUND_PACKAGES), 2_000_000_000, True),
    "opus": _Engine(_load_opus, _SOUND_PACKAGES, 1_500_000_000),
}


def _work(answer: _Answer) -> Work:
    """Return what serves requests: one at a time, each with what memory the process has taken so far."""
    lock = threading.Lock()

    def work(request: Mapping[str, Any], given_up: threading.Event) -> str:
        with lock:
            made = answer(request, given_up)
        peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return json.dumps({**made, "memory_mb": peak_mb}, default=float)

    return work


def main() -> None:
    """Serve the socket that is named on the command line."""
    lower_priority()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    engine, file = _ENGINES[sys.argv[1]], sys.argv[2]
    readable = list(library_paths(*engine.packages))
    if len(sys.argv) > 3:
        readable.append(str(Path(file).parent) if engine.parent_is_readable else file)
    serve_engine(lambda: _work(engine.load(file)), readable=readable, memory_bytes=engine.memory_bytes)


if __name__ == "__main__":
    main()
