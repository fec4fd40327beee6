"""The channel to copy keeps the contract."""

from __future__ import annotations

import os
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import ChannelUnavailable
from channels.skeleton import FolderChannel
from tests.contract import channel as contract
from tests.doubles.inbox import MemoryInbox, running

LOOK_S = 0.005


class FolderFarSide(contract.FarSide):
    session = SessionKey("folder", "owner")

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.count = 0

    def channel(self):
        return FolderChannel(self.folder, look_every_s=LOOK_S)

    async def say(self, text, *, session=None):
        self.count += 1
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"note{self.count}.txt").write_text(text)
        # Two files of one moment have no order.
        await anyio.sleep(0.01)

    async def seen(self, session=None):
        answers = sorted(self.folder.glob("*.md"), key=lambda file: file.stat().st_mtime_ns)
        return [file.read_text() for file in answers]

    async def go_down(self):
        os.rename(self.folder, self.folder.with_name("away"))
        self.folder.write_text("a file where the folder was")

    async def come_back(self):
        self.folder.unlink()
        os.rename(self.folder.with_name("away"), self.folder)


class TestFolder(
    contract.ReceivingContract, contract.LinkContract, contract.DeliveryContract, contract.CloseContract
):
    @asynccontextmanager
    async def far_side(self):
        with tempfile.TemporaryDirectory() as home:
            yield FolderFarSide(Path(home) / "box")

    async def test_without_a_server_nothing_is_delivered_and_nothing_uncertain(self):
        """While the folder is away, `deliver` raises `ChannelUnavailable` before the point of no return."""
        async with self.far_side() as far:
            await far.say("make the folder")
            await far.go_down()
            marks = []

            async def mark():
                marks.append(1)

            with pytest.raises(ChannelUnavailable):
                await far.channel().deliver(far.outbound("k1", "hello"), uncertain=mark)
            assert marks == []


async def _take(folder: Path, count: int) -> list[str]:
    inbox = MemoryInbox()
    async with running(FolderChannel(folder, look_every_s=LOOK_S), inbox):
        await inbox.until_accepted(count)
        await inbox.until_up()
    return inbox.texts


async def test_an_answer_lies_beside_its_question(tmp_path):
    """The answer's file begins with the name of the question's."""
    inbox = MemoryInbox()
    (tmp_path / "how are you.txt").write_text("?")
    channel = FolderChannel(tmp_path, look_every_s=LOOK_S)
    async with running(channel, inbox):
        (question,) = await inbox.until_accepted(1)
    far = FolderFarSide(tmp_path)
    reply = far.outbound("k1", "fine").model_copy(update={"context": question.context})

    async def uncertain():
        pass

    await channel.deliver(reply, uncertain=uncertain)
    (answer,) = tmp_path.glob("*.md")
    assert answer.name.startswith("how are you.")
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith(".")] == [answer.name]


async def test_the_same_file_dropped_again_is_a_new_message(tmp_path):
    """Names repeat, messages do not, even if everything but the moment is the same."""
    inbox = MemoryInbox()
    async with running(FolderChannel(tmp_path, look_every_s=LOOK_S), inbox):
        for count in (1, 2):
            draft = tmp_path / "draft"
            draft.write_text("hello")
            os.utime(draft, (1_000_000, 1_000_000))
            draft.rename(tmp_path / "same.txt")
            await inbox.until_accepted(count)
    assert inbox.texts == ["hello", "hello"]


async def test_a_file_that_grows_is_left_alone(tmp_path):
    """A file that is still being written is taken when it is whole."""
    inbox = MemoryInbox()
    with (tmp_path / "slow.txt").open("w") as file:
        async with running(FolderChannel(tmp_path, look_every_s=0.05), inbox):
            for word in ("never ", "half ", "a ", "message"):
                file.write(word)
                file.flush()
                await anyio.sleep(0.02)
            await inbox.until_accepted(1)
    assert inbox.texts == ["never half a message"]


async def test_whatever_lies_in_the_folder_becomes_text_or_stays(tmp_path):
    """Bytes that are no text, files without end, folders, links and pipes stop nothing."""
    (tmp_path / "1.txt").write_bytes(b"\xff\xfe\x00ok")
    (tmp_path / "2.txt").write_bytes(b"x" * 300_000)
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.txt")
    texts = await _take(tmp_path, 2)
    assert min(len(text) for text in texts) == 5
    assert max(len(text) for text in texts) < 101_000
    assert {file.name for file in tmp_path.glob("*.txt")} == {"folder.txt", "link.txt", "pipe.txt"}


@pytest.mark.parametrize("stem", ["../../outside", "/etc/outside", "..", "x" * 1000, ""])
async def test_a_context_leads_to_no_other_folder(tmp_path, stem):
    """Whatever the context says, the answer lies in the folder."""
    box = tmp_path / "deep" / "box"
    far = FolderFarSide(box)
    message = far.outbound("k1", "hello").model_copy(update={"context": {"stem": stem}})

    async def uncertain():
        pass

    await far.channel().deliver(message, uncertain=uncertain)
    assert [file.parent for file in tmp_path.rglob("*.md")] == [box]
