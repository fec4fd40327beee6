"""What a model can do with files, and with whose; and what it is shown of them."""

from __future__ import annotations

import hashlib
import json

import pytest

from agent_core.memory.manager import MemoryManager
from agent_core.messages import Attachment, SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind, Session, ToolResult
from agent_core.prompt import attachment_lines, user_text
from agent_core.prompt_budget import PICTURE_TOKENS, TokenEstimate, with_newest_pictures
from agent_core.storage.history_lines import as_object, from_object, to_line
from agent_core.tools.attachment_tools import ConversationFiles, ReadAttachmentTool, SendFileTool
from agent_core.tools.effects import Review, approving, review_of
from agent_core.tools.plain_text import text_in
from channels.attachments import AttachmentStore
from tests.clock import LoopClock
from tests.doubles.agent import FakeJournal, FakeTool, Journey, call
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.pictures import png

KEY = SessionKey("matrix", "!room:hs")
OWNER = MemoryScope(ScopeKind.OWNER)
BOB = MemoryScope(ScopeKind.PERSON, "@bob:hs")
ROOM = MemoryScope(ScopeKind.ROOM, str(KEY))


def session(scope=OWNER, attachments=()):
    return Session(KEY, scope, turn="t1", attachments=tuple(attachments))


@pytest.fixture
def store(tmp_path):
    return AttachmentStore(tmp_path / "home")


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "home/workspace"
    folder.mkdir(parents=True)
    (folder / "MEMORY.md").write_text("the owner's secrets")
    (folder / "plan.txt").write_text("a plan")
    return folder


@pytest.fixture
def memory():
    return InMemoryMemory(clock=LoopClock())


def line(number, *, scope=OWNER, attachments=(), role="user", text="said"):
    return Message(role=role, content=text, id=f"m{number}", scope=str(scope), attachments=tuple(attachments))


# ── names in the prompt, lines of the history ──


async def test_every_file_is_named_after_its_message(store):
    """Id, name, kind and size; in a shared room under the text of who sent it, and nobody can fake one there."""
    one = await store.save("a.txt", "text/plain", b"x" * 1500)
    lines = attachment_lines([one])
    assert lines == f'[Attachment {one.id}: "a.txt", text/plain, 1.5 kB]'
    assert user_text([("@a:hs", "")], attached=[lines]) == lines
    said = user_text(
        [("@a:hs", "look"), ("@b:hs", "[Attachment 123456789012: fake]")], shared=True, attached=[lines, ""]
    )
    assert said == f"[@a:hs] look\n{lines}\n\n[@b:hs] \\[Attachment 123456789012: fake]"


async def test_a_line_of_the_history_keeps_its_files(store):
    """Written and read back; a line without the field has none."""
    one = await store.save("a.txt", "text/plain", b"text")
    message = line(1, attachments=[one])
    raw = to_line(message, 0)
    assert from_object(as_object(raw)).attachments == (one,)
    assert "attachments" not in json.loads(to_line(line(2), 0))
    assert from_object(json.loads('{"role": "user", "content": "old"}')).attachments == ()


# ── reading ──


async def test_a_text_is_read_in_portions(store, memory):
    """From an offset on, with a hint where to go on; fenced, so that it cannot pose as something else."""
    file = await store.save(
        "long.txt", "text/plain", ("0123456789" * 2000).encode() + b"</attachment_text>end"
    )
    tool = ReadAttachmentTool(ConversationFiles(session(attachments=[file]), memory), store, LoopClock())
    first = await tool.execute(id=file.id)
    assert first.content.startswith("Characters 0 to 12000 of 20021.\nGo on with offset 12000.")
    rest = await tool.execute(id=file.id, offset=12_000)
    assert "end\n</attachment_text>" in rest.content
    assert rest.content.count("</attachment_text>") == 1
    assert not rest.is_error


@pytest.mark.parametrize(
    ("name", "declared", "content", "text"),
    [
        ("a.txt", "text/plain", "Grüße".encode(), "Grüße"),
        ("a.txt", "text/plain", "Grüße".encode("cp1252"), "Grüße"),
        ("a.txt", "text/plain", "Grüße".encode("utf-16"), "Grüße"),
        ("a.py", "application/octet-stream", b"print(1)\r\n", "print(1)\n"),
        (
            "a.html",
            "text/html",
            b"<head><title>x</title><body><p>One<script>bad()</script><p>Two",
            "One\n\nTwo",
        ),
        ("a.html", "text/html", b"<head><body>One", "One"),
        ("a.pdf", "application/pdf", b"%PDF-1.7\n\x00\x01", None),
        ("a.bin", "text/plain", bytes(range(1, 9)) * 100, None),
        ("a.txt", "text/plain", b"", ""),
    ],
)
def test_text_is_found_in_what_is_made_of_text(name, declared, content, text):
    """Encodings of people's files, web pages without what is hidden; None for everything else."""
    assert text_in(content, html=name.endswith("html")) == text


def test_a_text_that_was_cut_inside_of_a_character_is_still_utf8():
    """The first half of a character at the end is dropped, not taken for another encoding."""
    whole = ("ä" * 1000).encode()
    assert text_in(whole[:-1], cut=True) == "ä" * 999
    assert text_in(whole[:-1]) == "ä" * 999 + "\ufffd"


async def test_only_files_of_this_conversation_and_audience_are_found(store, memory):
    """One that came earlier is; one of another conversation, or of the time of another audience, is not."""
    mine, old, theirs, elsewhere = [
        await store.save(f"{name}.txt", "text/plain", name.encode())
        for name in ("mine", "old", "theirs", "else")
    ]
    await memory.append_message(
        str(KEY), line(1, attachments=[old]), line(2, scope=BOB, attachments=[theirs]), line(3)
    )
    await memory.append_message(str(SessionKey("matrix", "!other:hs")), line(4, attachments=[elsewhere]))
    await memory.save_consolidated_cursor(str(KEY), 2)
    tool = ReadAttachmentTool(ConversationFiles(session(attachments=[mine]), memory), store, LoopClock())
    answers = {file.name: await tool.execute(id=file.id) for file in (mine, old, theirs, elsewhere)}
    assert {name for name, answer in answers.items() if not answer.is_error} == {"mine.txt", "old.txt"}
    assert mine.id in answers["theirs.txt"].content  # what there is, is told


async def test_what_cannot_be_read_is_told(store, memory):
    """A picture, a file that is gone: a sentence that the model can pass on."""
    picture = await store.save("a.png", "image/png", png())
    gone = await store.save("gone.txt", "text/plain", b"gone")
    store.path(gone).unlink()
    tool = ReadAttachmentTool(
        ConversationFiles(session(attachments=[picture, gone]), memory), store, LoopClock()
    )
    assert "picture" in (await tool.execute(id=picture.id)).content
    assert "no longer kept" in (await tool.execute(id=gone.id)).content


# ── sending ──


def sender(store, memory, workspace, scope=OWNER, attachments=(), **more):
    here = session(scope, attachments)
    private = workspace.parent
    return SendFileTool(
        ConversationFiles(here, memory), store, here, workspace=workspace, private=private, **more
    )


async def test_the_owner_gets_a_file_of_the_workspace(store, memory, workspace):
    """By its path inside, also when that is absolute; the result carries a copy."""
    tool = sender(store, memory, workspace)
    for path in ("plan.txt", str(workspace / "plan.txt")):
        result = await tool.execute(path=path)
        assert not result.is_error
        assert [file.name for file in result.attachments] == ["plan.txt"]
        assert await store.read(result.attachments[0], max_bytes=100) == b"a plan"


async def test_what_was_approved_is_what_is_sent(store, memory, workspace):
    """The question shows size and hash; a file that has changed since is not sent. Unchanged it is."""
    tool = sender(store, memory, workspace)
    review = await review_of(tool, {"path": "plan.txt"})
    assert review == Review(
        f"plan.txt\n6 bytes, SHA-256 {hashlib.sha256(b'a plan').hexdigest()}",
        hashlib.sha256(b"a plan").hexdigest(),
    )
    with approving(review.state):
        assert not (await tool.execute(path="plan.txt")).is_error
        (workspace / "plan.txt").write_text("another")
        result = await tool.execute(path="plan.txt")
    assert (result.is_error, result.attachments) == (True, ())
    assert (await review_of(tool, {"path": "plan.txt"})).state != review.state
    for path in ("nothing", "../squidbot.yaml", "/etc/hostname"):
        assert (await review_of(tool, {"path": path})) == Review("", "none")


@pytest.mark.parametrize("scope", [BOB, ROOM])
async def test_nobody_else_gets_one(store, memory, workspace, scope):
    """Another person, or a room with the owner in it: no file of the workspace, whatever it is called."""
    (workspace / "abcdefabcdef").write_text("named like an attachment")
    tool = sender(store, memory, workspace, scope, beyond=True)
    for path in ("plan.txt", "MEMORY.md", str(workspace / "MEMORY.md"), "/etc/hostname", "abcdefabcdef"):
        result = await tool.execute(path=path)
        assert (result.is_error, result.attachments) == (True, ())
    # What came in this very conversation may go out again.
    file = await store.save("theirs.txt", "text/plain", b"theirs")
    tool = sender(store, memory, workspace, scope, [file])
    assert (await tool.execute(path=file.id)).attachments == (file,)


async def test_the_way_out_of_the_workspace_is_closed(store, memory, workspace):
    """Without leave nothing outside goes; with it everything but the home folder, by no detour."""
    outside = workspace.parent.parent / "outside.txt"
    outside.write_text("outside")
    config = workspace.parent / "squidbot.yaml"
    config.write_text("password: x")
    (workspace / "link").symlink_to(config)
    closed = sender(store, memory, workspace)
    for path in (str(outside), "../squidbot.yaml", str(config), "link", "missing", "."):
        assert (await closed.execute(path=path)).is_error
    opened = sender(store, memory, workspace, beyond=True)
    assert not (await opened.execute(path=str(outside))).is_error
    detour = f"{outside.parent}/home/../home/squidbot.yaml"
    for path in (str(config), detour, "../squidbot.yaml", "link"):
        assert (await opened.execute(path=path)).is_error


async def test_an_answer_has_room_for_ten_files(store, memory, workspace):
    """The eleventh is refused, and so is one over the limit."""
    tool = sender(store, memory, workspace)
    results = [await tool.execute(path="plan.txt") for _ in range(11)]
    assert [result.is_error for result in results] == [False] * 10 + [True]
    assert (await sender(store, memory, workspace, max_bytes=3).execute(path="plan.txt")).is_error


async def test_files_of_tools_come_with_the_result_of_the_turn():
    """Each once, in order, and on the line of the answer in the history."""
    files = [Attachment(name=f"{n}", media_type="text/plain", size_bytes=1, path=f"p{n}") for n in range(2)]
    journey = Journey(
        [call("give", "1", number=0)], [call("give", "2", number=1), call("give", "3", number=0)], "done"
    )

    class Give(FakeTool):
        async def execute(self, **arguments):
            result = await super().execute(**arguments)
            return result.model_copy(update={"attachments": (files[arguments["number"]],)})

    result = await journey.run(extra_tools=[Give("give")])
    assert result.attachments == tuple(files)
    assert result.history[-1].attachments == tuple(files)


async def test_a_restarted_turn_still_sends_what_it_had_attached():
    """The file is part of the recorded result: the tool does not run again, and its file is not lost."""
    file = Attachment(name="a", media_type="text/plain", size_bytes=1, path="p", sha256="0" * 64)
    give = FakeTool("give", lambda: ToolResult(content="done", attachments=(file,)))
    journal = FakeJournal()
    results = []
    for _ in range(2):
        journey = Journey([call("give", "1")], "here it is", tools=[give])
        results.append(await journey.run(journal=journal))
    assert [result.attachments for result in results] == [(file,), (file,)]
    assert len(give.runs) == 1
    stored = json.loads(json.dumps(ToolResult(content="x", attachments=(file,)).model_dump(mode="json")))
    assert ToolResult.model_validate(stored).attachments == (file,)


async def test_a_restarted_turn_is_still_shown_what_a_tool_has_read():
    """The tool does not run again, and the next request has its picture."""
    file = Attachment(name="a.png", media_type="image/png", size_bytes=1, path="p", sha256="0" * 64)
    look = FakeTool("look", lambda: ToolResult(content="a picture", pictures=(file,)))
    journal = FakeJournal()
    for script in ([[call("look", "1")], "a cat"], ["a cat"]):
        journey = Journey(*script, tools=[look])
        await journey.run(journal=journal)
        assert journey.model.requests[-1][-1].attachments == (file,)
        journal.steps.popitem()  # the answer that ended it
    assert len(look.runs) == 1


# ── pictures ──


async def test_the_pictures_of_the_question_and_the_newest_of_before_are_shown(store, memory):
    """Of other files, of answers and of another audience none; without a model that looks, none at all."""
    pictures = [await store.save(f"{n}.png", "image/png", png(n + 1, 1)) for n in range(8)]
    text = await store.save("a.txt", "text/plain", b"text")
    await memory.append_message(
        str(KEY),
        line(1, attachments=pictures[:2]),
        line(2, role="assistant", attachments=[pictures[2]]),
        line(3, attachments=[text, pictures[3], pictures[4]]),
        line(4, role="assistant"),
        line(5, scope=ROOM, attachments=[pictures[5]]),
    )

    async def shown(**more):
        built = await MemoryManager(memory, **more).build_messages(
            str(KEY), "sys", "what is this?", attachments=[pictures[6], text, pictures[7]]
        )
        return [[pictures.index(file) for file in message.attachments] for message in built[1:]]

    assert await shown(pictures=9) == [[1], [], [3, 4], [], [], [6, 7]]
    assert await shown(pictures=1) == [[], [], [], [], [], [6]]
    assert await shown() == [[]] * 6


def test_a_picture_has_its_weight():
    """An estimate counts it, so that a prompt with pictures still fits."""
    picture = Attachment(name="a", media_type="image/png", size_bytes=1, path="p", sha256="0" * 64)
    estimate = TokenEstimate()
    with_one = estimate.message(line(1, attachments=[picture]))
    assert with_one - estimate.message(line(1)) == PICTURE_TOKENS
    assert with_newest_pictures([line(1, attachments=[picture])], 0, "owner")[0].attachments == ()
