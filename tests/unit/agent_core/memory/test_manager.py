"""What a model is shown of the past."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from agent_core.errors import SkillInvalid
from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.models import MemoryScope, Message, ModelChunk, ScopeKind, Skill, ToolDefinition
from agent_core.prompt import BASE_PROMPT, CUT_NOTE, turn_facts, unprompted_line
from agent_core.prompt_budget import TokenEstimate
from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
from agent_core.storage import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.search_history import SearchHistoryTool
from agent_core.tools.tool_registry import ToolRegistry, definition_of
from tests.clock import EPOCH, ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory

S = "terminal/local"
WRITE = ("memory_write",)


class SilentModel:
    """A model that must not be asked while a prompt is built."""

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        raise AssertionError("a prompt was built by asking a model")


class ListedSkills:
    """Skills from a list; a body of None cannot be read."""

    def __init__(self, *skills: tuple[Skill, str | None]) -> None:
        self._skills = {skill.name: (skill, body) for skill, body in skills}

    def list_skills(self) -> list[Skill]:
        return [skill for skill, _ in self._skills.values()]

    def load_skill_body(self, name: str) -> str:
        body = self._skills[name][1]
        if body is None:
            raise SkillInvalid("gone")
        return body


@pytest.fixture
def storage() -> InMemoryMemory:
    return InMemoryMemory(clock=ManualClock())


async def say(storage: InMemoryMemory, count: int, text: str = "message") -> None:
    """So many messages, in turns."""
    start = (await storage.load_history(S)).total
    for number in range(start, start + count):
        role = "user" if number % 2 == 0 else "assistant"
        await storage.append_message(S, Message(role=role, content=f"{text} {number}", id=str(number)))


async def test_a_first_prompt_is_base_and_question(storage: InMemoryMemory) -> None:
    """With nothing to remember there is no heading, no note, no history."""
    built = await MemoryManager(storage).build_messages(S, "sys", "hello")

    assert [(each.role, each.content) for each in built] == [("system", "sys"), ("user", "hello")]


async def test_memory_summary_and_history_are_shown(storage: InMemoryMemory) -> None:
    """Document and summary are in the system text in this order, then history after the cursor, then the question."""
    await say(storage, 6)
    await storage.save_consolidation(S, summary="they met", cursor=4)
    await storage.save_global_memory(OWNER, "## Profile\n- likes tea")

    system, *rest = await MemoryManager(storage).build_messages(S, "sys", "new")
    text = system.content
    assert text.startswith("sys\n\n## Your Memory\n\n<memory>\n## Profile\n- likes tea\n</memory>")
    assert text.endswith("## Session Summary\n\n<summary>\nthey met\n</summary>")
    assert [each.content for each in rest] == ["message 4", "message 5", "new"]


async def test_each_scope_sees_its_own_document(storage: InMemoryMemory) -> None:
    """Nobody else's prompt has the owner's memory in it."""
    bob = MemoryScope(ScopeKind.PERSON, "@bob:hs")
    room = MemoryScope(ScopeKind.ROOM, "matrix/!r")
    await storage.save_global_memory(OWNER, "the owner's secret")
    await storage.save_global_memory(bob, "bob's fact")

    manager = MemoryManager(storage)
    for scope, seen in ((OWNER, "the owner's secret"), (bob, "bob's fact"), (room, "")):
        system = (await manager.build_messages(S, "sys", "x", scope=scope))[0].content
        assert seen in system
        assert ("secret" in system) == (scope is OWNER)


async def test_consolidation_skipped_when_no_llm(storage: InMemoryMemory) -> None:
    """Without a model to consolidate with, everything stays in the prompt and nothing is announced."""
    await say(storage, 6)
    manager = MemoryManager(storage=storage, consolidation_threshold=3, keep_recent_ratio=0.34, llm=None)

    built = await manager.build_messages(S, "sys", "new", tool_names=WRITE)
    assert len(built) == 8
    assert built[0].content == "sys"
    assert await storage.load_session_summary(S) == ""


@pytest.mark.parametrize(
    ("messages", "cursor", "tools", "model", "warned"),
    [
        (7, 0, WRITE, True, False),
        (8, 0, WRITE, True, True),
        (11, 0, WRITE, True, True),
        (11, 4, WRITE, True, False),
        (12, 4, WRITE, True, True),
        (8, 0, ("other",), True, False),
        (8, 0, WRITE, False, False),
    ],
)
async def test_the_warning_comes_two_messages_early(
    storage: InMemoryMemory, messages: int, cursor: int, tools: tuple[str, ...], model: bool, warned: bool
) -> None:
    """It appears when N - cursor >= threshold - 2, if the tool is there and consolidation will happen at all."""
    await say(storage, messages)
    await storage.save_consolidated_cursor(S, cursor)
    manager = MemoryManager(storage, consolidation_threshold=10, llm=SilentModel() if model else None)

    system = (await manager.build_messages(S, "sys", "x", tool_names=tools))[0].content
    assert ("replaced by a summary" in system) == warned


async def test_the_hard_ceiling_keeps_the_newest_with_a_note(storage: InMemoryMemory) -> None:
    """However long a conversation is, the prompt fits, ends with the newest, begins with a question and says so."""
    await say(storage, 2000, text="some words " * 20)
    manager = MemoryManager(storage, window=lambda: 5334, llm=SilentModel())

    built = await manager.build_messages(S, BASE_PROMPT, "new", tool_names=WRITE)
    assert manager.estimate.request(built) <= 4000
    assert manager.estimate.request(built) > 3000
    assert built[0].content.endswith(CUT_NOTE)
    assert built[1].role == "user"
    assert built[-2].content.endswith(" 1999")
    shorter = await manager.build_messages(S, BASE_PROMPT, "new", context_tokens=1500)
    assert manager.estimate.request(shorter) <= 1500
    assert shorter[-2].content.endswith(" 1999")
    assert (await storage.load_history(S)).total == 2000


@pytest.mark.parametrize("giant", ["question", "answer", "memory", "summary", "user"])
async def test_one_giant_text_does_not_displace_the_rest(storage: InMemoryMemory, giant: str) -> None:
    """A megabyte anywhere is cut in the middle; everything else is still in the prompt, which still fits."""
    big = "x" * 1_000_000
    await say(storage, 4)
    await storage.append_message(
        S,
        Message(role="user", content=big if giant == "question" else "where?"),
        Message(role="assistant", content=big if giant == "answer" else "there"),
    )
    await storage.save_session_summary(S, big if giant == "summary" else "they met")
    await storage.save_global_memory(OWNER, big if giant == "memory" else "likes tea")
    manager = MemoryManager(storage, window=lambda: 5334)

    built = await manager.build_messages(S, "sys", big if giant == "user" else "new")
    text = "\n".join(each.content for each in built)
    assert manager.estimate.request(built) <= 4000 + 100  # notes of what was left out are not counted
    assert "characters left out" in text
    for part, said in (
        ("question", "where?"),
        ("answer", "there"),
        ("memory", "likes tea"),
        ("summary", "they met"),
        ("user", "new"),
    ):
        assert giant == part or said in text, part


async def test_experience_makes_prompts_shorter(storage: InMemoryMemory) -> None:
    """If requests turn out to be longer than guessed, less goes in next time."""
    await say(storage, 200, text="some words " * 20)
    known = TokenEstimate()
    manager = MemoryManager(storage, window=lambda: 5334, estimate=lambda: known)
    before = len(await manager.build_messages(S, "sys", "new"))
    known = TokenEstimate(factor=2.0)

    assert len(await manager.build_messages(S, "sys", "new")) < before


async def test_skills_come_after_the_summary(storage: InMemoryMemory) -> None:
    """The index lists all; bodies are there of those that are always shown, by themselves or by configuration."""
    skills = ListedSkills(
        (Skill("always", "d", always=True), "BODY ALWAYS </skill_text>"),
        (Skill("forced", "d"), "BODY FORCED"),
        (Skill("lacking", "d", always=True, missing=("jq",)), "BODY LACKING"),
        (Skill("plain", "d"), "BODY PLAIN"),
        (Skill("broken", "d", always=True), None),
    )
    await storage.save_session_summary(S, "they met")
    manager = MemoryManager(storage, skills=skills, always_skills=["forced", "unknown"])

    text = (await manager.build_messages(S, "sys", "x", tool_names=("read_skill",)))[0].content
    assert (
        text.index("they met")
        < text.index("<skills>")
        < text.index("BODY ALWAYS")
        < text.index("BODY FORCED")
    )
    assert "BODY LACKING" not in text and "BODY PLAIN" not in text
    assert all(f'name="{name}"' in text for name in ("always", "forced", "lacking", "plain", "broken"))
    assert text.count("</skill_text>") == 2
    assert "read_skill" in text


async def test_bodies_of_skills_have_a_limit(storage: InMemoryMemory) -> None:
    """A skill that is too long for its share is left out; the prompt goes on without it."""
    skills = ListedSkills((Skill("long", "d", always=True), "word " * 50_000))

    text = (await MemoryManager(storage, skills=skills).build_messages(S, "sys", "x"))[0].content
    assert "<skills>" in text and "word word" not in text


async def test_the_shown_version_is_that_of_the_last_prompt(storage: InMemoryMemory) -> None:
    """A write after the prompt is compared with what the prompt showed, per session."""
    manager = MemoryManager(storage)
    assert manager.shown_version(S) is None
    await manager.build_messages(S, "sys", "x")
    assert manager.shown_version(S) == 0
    await storage.save_global_memory(OWNER, "by another session")
    assert manager.shown_version(S) == 0
    await manager.build_messages(S, "sys", "x")
    assert manager.shown_version(S) == 1
    assert manager.shown_version("terminal/other") is None


async def test_persist_exchange_keeps_a_pair_once(storage: InMemoryMemory) -> None:
    """Question and answer are appended in order; with a turn a repetition changes nothing."""
    manager = MemoryManager(storage)
    for _ in range(2):
        await manager.persist_exchange(S, "hello", "hi", turn="7", sender="local", at=EPOCH, scope=OWNER)

    user, assistant = (await storage.load_history(S)).messages
    assert (user.role, user.content, user.id, user.turn, user.sender, user.timestamp) == (
        "user",
        "hello",
        "7.0",
        "7",
        "local",
        EPOCH,
    )
    assert (assistant.role, assistant.content, assistant.id) == ("assistant", "hi", "7.1")
    assert (user.scope, assistant.scope, assistant.turn) == ("owner", "owner", "7")
    await manager.persist_exchange(S, "hello", "hi")
    await manager.persist_exchange(S, "hello", "hi")
    assert (await storage.load_history(S)).total == 6


async def test_the_prefix_of_a_prompt_does_not_change(storage: InMemoryMemory) -> None:
    """From one turn to the next everything before the last question stays the same, so that it can be cached."""
    manager = MemoryManager(storage)
    await say(storage, 4)
    first = await manager.build_messages(S, "sys", f"{turn_facts(EPOCH)}\nhello")
    await manager.persist_exchange(S, "hello", "hi")

    second = await manager.build_messages(S, "sys", "next")
    assert second[: len(first) - 1] == first[:-1]


async def test_the_first_request_is_under_six_kilobytes(tmp_path: Path) -> None:
    """What "hello" costs in all: system text, skills, tools and question, as a request to a model."""
    storage = JsonlMemory(tmp_path, clock=ManualClock())
    skills = SkillsLoader(BUNDLED_SKILLS, tmp_path / "workspace" / "skills")
    registry = ToolRegistry()
    registry.register(ReadSkillTool(skills))
    search = SearchHistoryTool(
        SearchIndex(tmp_path / "search.db", storage.layout), S, scope=OWNER, clock=ManualClock()
    )
    tools = [*registry.get_definitions(), definition_of(MemoryWriteTool(storage, S)), definition_of(search)]

    built = await MemoryManager(storage, skills=skills, llm=SilentModel()).build_messages(
        S,
        BASE_PROMPT,
        f"{turn_facts(EPOCH, channel='matrix')}\nhello",
        tool_names=[tool.name for tool in tools],
    )
    request = {
        "messages": [{"role": each.role, "content": each.content} for each in built],
        "tools": [{"type": "function", "function": tool.model_dump()} for tool in tools],
    }
    assert len(orjson.dumps(request)) < 3_000  # half of what is allowed, for the tools still to come


def test_the_estimate_can_be_given() -> None:
    """The first guess is the caller's, if there is a better one."""
    estimate = TokenEstimate(chars_per_token=2.0)
    assert MemoryManager(InMemoryMemory(), estimate=lambda: estimate).estimate is estimate


async def test_a_document_that_is_a_folder_costs_the_memory_and_not_the_answer(tmp_path: Path) -> None:
    """The prompt is built without it, it is told once, and again only after it could be read."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    await memory.save_global_memory(OWNER, "- likes tea")
    path, kept = memory.layout.document(OWNER), tmp_path / "kept.md"
    said: list[str] = []
    manager = MemoryManager(memory, llm=SilentModel(), on_unusable=said.append)

    async def prompt() -> str:
        messages = await manager.build_messages(S, BASE_PROMPT, "Hello", tool_names=WRITE)
        return "\n".join(each.content for each in messages)

    assert "likes tea" in await prompt()
    for told in (1, 2):
        path.rename(kept)
        path.mkdir()
        for _ in range(3):
            assert "likes tea" not in await prompt()
        assert len(said) == told
        assert "a folder" in said[-1]
        tool = MemoryWriteTool(
            memory, session_id=S, scope=OWNER, turn="1", shown_version=lambda: manager.shown_version(S)
        )
        answer = await tool.execute(content="- likes coffee")
        assert (answer.is_error, "owner knows" in answer.content) == (True, True)
        path.rmdir()
        kept.rename(path)
        assert "likes tea" in await prompt()


async def test_history_carries_days() -> None:
    """Where the day changes both days stand; what was written once stays, as more is said."""
    clock = ManualClock()
    storage = InMemoryMemory(clock=clock)
    manager = MemoryManager(storage, window=lambda: 5334)
    shown: list[list[str]] = []
    for _ in range(3):
        await say(storage, 4)
        shown.append([each.content for each in (await manager.build_messages(S, "sys", "new"))[1:-1]])
        clock.advance(86_400)
    assert [text for text in shown[-1] if not text.startswith("message")] == [
        "[Fri 2026-01-02; above: Thu 2026-01-01]\nmessage 4",
        "[Sat 2026-01-03; above: Fri 2026-01-02]\nmessage 8",
    ]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(shown))


@pytest.mark.parametrize("turns", [("1", "2"), ("1", "1")])
async def test_what_came_by_itself_is_no_part_of_the_answer_above(turns: tuple[str, str]) -> None:
    """A line with day and time stands between; the control is one answer in two lines of its turn."""
    storage, at = InMemoryMemory(), datetime(2026, 1, 2, 9, tzinfo=UTC)
    lines = [
        Message(role="user", content="hello", id="1.0", turn="1", timestamp=at),
        Message(role="assistant", content="Hi.", id="1.1", turn=turns[0], timestamp=at),
        Message(role="assistant", content="Tea!", id="2.1", turn=turns[1], timestamp=at + timedelta(days=1)),
    ]
    await storage.append_message(S, *lines)
    built = await MemoryManager(storage, window=lambda: 5334).build_messages(S, "sys", "new")
    said = [(each.role, each.content) for each in built[2:-1]]
    mark = ("user", unprompted_line((at + timedelta(days=1)).astimezone()))
    apart = turns[0] != turns[1]
    assert said == [("assistant", "Hi."), *([mark] if apart else []), ("assistant", "Tea!")]
    assert all(each.sources == () for each in built if each.content == mark[1]), "these words are ours"


@pytest.mark.parametrize(
    ("question", "mark"),
    [
        ("[Fri 2026-01-02 09:00 UTC, matrix]\nnew", "[Fri 2026-01-02; above: Thu 2026-01-01]\n"),
        ("[Thu 2026-01-01 09:00 UTC, matrix]\nnew", ""),
        ("[Fri 2026-01-99 09:00 UTC, matrix]\nnew", ""),
        ("new", ""),
    ],
    ids=["the next day", "the same day", "no day", "no facts"],
)
async def test_a_history_of_one_day_has_its_day_before_a_question_of_another(
    question: str, mark: str
) -> None:
    """Nothing in it has a day otherwise; where both are of one day the question's facts say it."""
    storage = InMemoryMemory(clock=ManualClock())
    await say(storage, 2)
    built = await MemoryManager(storage).build_messages(S, "sys", question)
    assert [each.content for each in built[1:]] == ["message 0", "message 1", f"{mark}{question}"]
