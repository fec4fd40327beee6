"""Pictures that are too large for a model are made smaller by the real library, in its confined process."""

from __future__ import annotations

import io
import random
import struct
from contextlib import aclosing
from typing import Any

import pytest

from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec, ModelSpec, ProviderSpec
from agent_core.llm.prompt_pictures import ScaledPictures
from agent_core.messages import Attachment
from tests.clock import LoopClock
from tests.pictures import png

LIMITS = {"max_bytes": 3_750_000, "max_pixels": 40_000_000, "max_side": 8000}
PHOTO = Attachment(name="a.jpg", media_type="image/jpeg", size_bytes=5, path="p", sha256="0" * 64)


class Stored:
    """An `AttachmentPort` with one file, which is too large unless it is small."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def read(self, attachment: Attachment, *, max_bytes: int, offset: int = 0) -> bytes:
        return self.content[:max_bytes]

    async def picture(self, attachment: Attachment, **limits: int) -> tuple[str, bytes] | None:
        if len(self.content) > 200:
            raise ValueError("its file is too large")
        return "image/png", self.content


async def seen(content: bytes, **limits: int) -> tuple[str, bytes] | None:
    scaled = ScaledPictures(Stored(content))  # type: ignore[arg-type]
    async with aclosing(scaled.process):
        return await scaled.picture(PHOTO, **{**LIMITS, **limits})


def photo(width: int = 4000, height: int = 3000, kind: str = "JPEG", **more: Any) -> bytes:
    from PIL import Image

    noise = random.Random(1).randbytes(width * height // 64)
    image = Image.frombytes("L", (width // 8, height // 8), noise).resize((width, height)).convert("RGB")
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def size_of(content: bytes) -> tuple[int, int]:
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        return image.size


async def test_a_photo_is_made_smaller() -> None:
    """And upright: phones say in the file how it was held."""
    from PIL import Image

    held = Image.Exif()
    held[0x0112] = 6  # a quarter turn
    found = await seen(photo(exif=held))
    assert found is not None
    assert found[0] == "image/jpeg"
    assert size_of(found[1]) == (1500, 2000)
    assert len(found[1]) < 1_500_000


async def test_a_long_screenshot_with_transparent_parts() -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGBA", (100, 9000), (0, 0, 0, 0)).save(file, "PNG")
    found = await seen(file.getvalue())
    assert found is not None
    assert size_of(found[1]) == (22, 2000)
    with Image.open(io.BytesIO(found[1])) as image:
        assert image.getpixel((5, 5)) == (255, 255, 255)


async def test_what_fits_is_as_it_was() -> None:
    """No process is started for it."""
    scaled = ScaledPictures(Stored(png()))  # type: ignore[arg-type]
    assert await scaled.picture(PHOTO, **LIMITS) == ("image/png", png())
    assert scaled.process.pid is None


def bomb() -> bytes:
    """A PNG of a few bytes that says that it has 3,600 million pixels."""
    header = struct.pack(">II", 60_000, 60_000)
    return png()[:16] + header + png()[24:] + b"\0" * 300


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bomb(), "a bomb"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 300, "rubbish"),
        (b"\0" * 13_000_000, "too much to read"),
    ],
)
async def test_what_cannot_be_made_smaller_is_left_out(content: bytes, why: str) -> None:
    """With the reason that it had before; the process lives on."""
    with pytest.raises(ValueError, match="its file is too large"):
        await seen(content)


async def test_the_process_says_what_it_gave_up() -> None:
    scaled = ScaledPictures(Stored(photo(900, 900)))  # type: ignore[arg-type]
    async with aclosing(scaled.process):
        assert await scaled.picture(PHOTO, **LIMITS) is not None
        assert scaled.process.ready_report.keys() >= {"landlock", "seccomp"}


async def test_models_that_look_get_them() -> None:
    """The client of a model with `vision` reads pictures through this, and the process ends with it."""
    spec = LLMSpec(
        default_pool="main",
        models={"m": ModelSpec(provider="p", model="openai/m", vision=True)},
        providers={"p": ProviderSpec(api_base="http://127.0.0.1:9")},
        pools={"main": ("m",)},
    )
    models = build_models(spec, LoopClock(), attachments=Stored(photo(900, 900)))  # type: ignore[arg-type]
    (client,) = models.pool().models
    found = await client._pictures.picture(PHOTO, **LIMITS)  # type: ignore[attr-defined]
    await models.aclose()
    assert size_of(found[1]) == (900, 900)
    assert models.scaling is not None
    assert models.scaling.process.pid is None
