"""The tool `image` by itself: what is paid, and what an answer of a provider may hold."""

from __future__ import annotations

import base64

import anyio
import pytest

from agent_core.errors import ModelUnavailable, ModelUnreadable, ToolFailed
from agent_core.media.image_tool import ImageTool
from agent_core.media.media_config import ImageSettings, check_image
from agent_core.media.pictures import GeneratedPicture, pictures_in
from agent_core.messages import Attachment
from devservers.images import png_of

SETTINGS = ImageSettings(provider="p", model="openai/x", usd_per_image=0.5, max_per_turn=3)


class Purse:
    """What was noted, and whether anything may be paid at all."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.noted: list[float | None] = []
        self.reserved: list[float | None] = []

    async def begin(self, tokens: int, usd: float | None) -> str:
        self.reserved.append(usd)
        return self.refusal

    async def end(self, usage) -> None:
        self.noted.append(None if usage is None else usage.cost_usd)


class Maker:
    def __init__(self, outcome: object) -> None:
        self.outcome = outcome
        self.asked = 0

    async def make(self, prompt: str, *, count: int, size: str) -> GeneratedPicture:
        self.asked += 1
        if self.outcome == "hang":
            await anyio.sleep_forever()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return GeneratedPicture((png_of(prompt),) * count, cost_usd=0.1 * count, model="x")

    async def aclose(self) -> None:
        pass


async def keep(name: str, media_type: str, content: bytes) -> Attachment:
    return Attachment(name=name, media_type=media_type, size_bytes=len(content), path=name)


def tool(purse: Purse, maker: Maker) -> ImageTool:
    return ImageTool(SETTINGS, lambda: maker, keep, lambda: purse)


async def test_what_the_provider_says_is_noted():
    purse = Purse()
    result = await tool(purse, Maker(None)).execute(prompt="a", count=2)
    assert (purse.reserved, purse.noted) == ([1.0], [0.2])
    assert [file.name for file in result.attachments] == ["picture-1.png", "picture-2.png"]


async def test_where_the_budget_says_no_nobody_is_asked():
    purse, maker = Purse("the day is spent"), Maker(None)
    result = await tool(purse, maker).execute(prompt="a")
    assert result.is_error
    assert "the day is spent" in result.content
    assert (maker.asked, purse.noted) == (0, [])


@pytest.mark.parametrize(
    ("error", "noted"),
    [(ModelUnavailable("x"), None), (ModelUnreadable("x", kind="malformed"), 0.5)],
)
async def test_what_may_have_been_paid_is_noted(error, noted):
    """An answer that nobody can read has probably been paid; a refused connection has not."""
    purse = Purse()
    with pytest.raises(ToolFailed, match="No picture came"):
        await tool(purse, Maker(error)).execute(prompt="a")
    assert purse.noted == [noted]


async def test_one_that_is_cut_off_counts_as_paid():
    purse = Purse()
    with anyio.move_on_after(0.05):
        await tool(purse, Maker("hang")).execute(prompt="a")
    assert purse.noted == [0.5]


async def test_a_turn_that_is_taken_up_again_has_what_is_left():
    first = tool(Purse(), Maker(None))
    await first.execute(prompt="a", count=2)
    again = tool(Purse(), Maker(None))
    again.restore(first.state())
    assert (await again.execute(prompt="b", count=2)).is_error
    assert not (await again.execute(prompt="b", count=1)).is_error


def given(content: bytes) -> dict[str, object]:
    return {"b64_json": base64.b64encode(content).decode()}


@pytest.mark.parametrize("content", [png_of("x"), b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBPVP8 "])
def test_pictures_are_known_by_their_content(content):
    assert pictures_in({"data": [given(content)]}, most=1, max_bytes=1000) == (content,)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": None},
        {"data": [None, 1, "x"]},
        {"data": [given(b"<svg onload=x>")]},
        {"data": [given(b"GIF89a")]},
        {"data": [{"b64_json": "%"}]},
        {"data": [{"b64_json": ["x"]}]},
        {"data": [{"url": "http://x"}]},
        {"data": [given(png_of("x") + bytes(2000))]},
    ],
)
def test_anything_else_is_no_picture(answer):
    with pytest.raises(ValueError, match=r"picture|address|neither"):
        pictures_in(answer, most=1, max_bytes=1000)


def test_more_than_was_asked_for_is_left():
    answer = {"data": [given(png_of("a")), given(png_of("b"))]}
    assert pictures_in(answer, most=1, max_bytes=1000) == (png_of("a"),)


def test_a_provider_that_is_not_there_is_named():
    part = {"image": {"provider": "opnai", "model": "openai/x"}}
    [(path, told)] = check_image(part, {"openai": None})  # type: ignore[dict-item]
    assert path == ("tools", "image", "provider")
    assert "did you mean 'openai'" in told
