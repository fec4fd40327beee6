"""What would run is shown whole, however long it is: in the question, or in a file that goes with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channels.attachments import AttachmentsFull, AttachmentStore
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.integration.test_answers_in_words import said
from tests.integration.test_tool_approval import ANN, BOB, Writer, answers, asking, question

LONG = "echo good; " * 400 + "rm\u202e -rf ~; " + "echo good; " * 400 + "true"


class Mute(LoopbackChannel):
    """A channel that cannot send files."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.capabilities = replace(self.capabilities, attachments=False)


def stored(root: Path, sent: Delivered) -> str:
    """The text of the one file that was sent with a message."""
    (file,) = sent.attachments
    text = (root / file.path).read_bytes()
    assert hashlib.sha256(text).hexdigest() == file.sha256
    assert f"{len(text)} bytes, SHA-256 `{file.sha256[:16]}…`" in sent.text
    return text.decode()


async def test_a_long_call_goes_with_the_question(tmp_path: Path) -> None:
    """The middle, which the message does not show, is in the file, with each character to be seen; and it runs."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, f"write {LONG}")
        notice, _ = await question(one, f"dm-{BOB}")
        file = stored(tmp_path, notice)
        one.server.say(BOB, "yes")
        await answers(one, f"dm-{BOB}", 2)
    assert "rm" not in notice.text
    assert LONG.replace("\u202e", "‹U+202E›") in file
    assert tool.written == [LONG]


async def test_a_short_call_needs_no_file(tmp_path: Path) -> None:
    """The control."""
    async with asking(tmp_path, Writer()) as one:
        one.server.say(BOB, f"write {'x' * 500}")
        notice, _ = await question(one, f"dm-{BOB}")
    assert notice.attachments == ()
    assert "x" * 500 in notice.text


@pytest.mark.parametrize("why", ["no files", "no room"])
async def test_without_a_file_the_question_itself_is_long(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a channel takes no files, or the disk is full: in as many messages as it takes, nothing left out."""

    async def full(*_: Any, **__: Any) -> None:
        raise AttachmentsFull("no room")

    server = LoopbackServer()
    channel = (Mute if why == "no files" else LoopbackChannel)(server, name="matrix")
    if why == "no room":
        monkeypatch.setattr(AttachmentStore, "save", full)
    async with asking(tmp_path, Writer(), server=server, channels={"matrix": (channel, "each")}) as one:
        server.say(BOB, f"write {LONG}")
        notice, _ = await question(one, f"dm-{BOB}")
        await said(one, f"dm-{BOB}", "**a")
        shown = "".join(sent.text for sent in server.seen(f"dm-{BOB}"))
    assert LONG.replace("\u202e", "‹U+202E›") in shown
    assert notice.attachments == ()
    assert "in the file" not in shown


async def test_the_owner_is_shown_a_guests_long_call(tmp_path: Path) -> None:
    """The file goes to the owner alone; who asked gets none."""
    tool = Writer()
    async with asking(tmp_path, tool, approval={"matrix": "strangers"}) as one:
        await one.asked("!help", person=ANN)
        one.server.say(BOB, f"write {LONG}")
        notice, _ = await question(one, f"dm-{ANN}")
        file = stored(tmp_path, notice)
        shown = one.server.seen(f"dm-{BOB}")
    assert "‹U+202E›" in file
    assert shown == []
