"""
`squidbot chat` wrote answers to the terminal as they came. A sentence in somebody's memory or mail, quoted by
the model, could recolour it, retitle it, hide what stands above, or put text into the clipboard.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from channels.terminal import Answer, Preview
from gateway.cli.chat import _Screen
from gateway.system.terminal_text import plain_text

EVIL = "one\x1b[2J\x1b]52;c;ZWNobwo=\x07 two\r\x9b31m\u202ethree\x00"


class Scripted:
    """A conversation that shows what it is told to, then ends."""

    def __init__(self, *events: Any) -> None:
        self._events = events

    async def say(self, text: str, *, native_id: str | None = None) -> str:
        return native_id or ""

    async def __aiter__(self) -> AsyncIterator[Any]:
        for event in self._events:
            yield event


async def shown(*events: Any, tty: bool) -> str:
    sink = io.StringIO()
    with tempfile.TemporaryFile("w+") as keyboard:
        screen = _Screen(Scripted(*events), keyboard, sink)
        screen._tty = tty
        async with anyio.create_task_group() as tasks:
            await screen._show(tasks)
    return sink.getvalue()


@pytest.mark.parametrize("tty", [True, False])
async def test_an_answer_commands_no_terminal(*, tty: bool) -> None:
    """Control characters become visible, whole and while the answer grows; the words stay."""
    text = await shown(Preview(text=EVIL[:12]), Preview(text=EVIL), Answer(id="1", text=EVIL), tty=tty)

    assert not set(text) & set("\x1b\x07\x9b\x00\u202e")
    assert "two" in text
    assert "three" in text


async def test_an_answer_that_grows_is_shown_once() -> None:
    """What is made visible stays the same while the answer grows."""
    previews = [Preview(text=EVIL[:end]) for end in range(1, len(EVIL) + 1)]
    text = await shown(*previews, Answer(id="1", text=EVIL), tty=True)

    assert text.count("two") == text.count("three") == 1


def test_what_scripts_and_emoji_are_made_with_stays() -> None:
    """Joiners, accents and wide characters command nothing."""
    for text in ("👩\u200d👩\u200d👧 ❤\ufe0f", "می\u200cخواهم", "e\u0301 日本語", "a\n\n    b"):
        assert plain_text(text) == text
