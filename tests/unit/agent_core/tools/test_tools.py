"""The registry, and the tools that come with the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from agent_core.errors import StorageUnavailable
from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.models import MemoryDocument, MemoryScope, ScopeKind, ToolResult
from agent_core.ports import ToolPort
from agent_core.provenance import untrusted_origin
from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
from agent_core.tools.effects import Wording
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.schedule_tool import ScheduleTool
from agent_core.tools.tool_registry import ToolRegistry, problem_with
from tests.doubles.in_memory_storage import InMemoryMemory

S, OTHER = "terminal/local", "email/thread"


class Echo:
    """Says what it got."""

    name = "echo"
    description = "Echo."
    parameters: ClassVar = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "times": {"type": "integer"},
            "how": {"type": "string", "enum": ["loud", "soft"]},
            "list": {"type": ["array", "null"]},
            "flag": {"type": "boolean"},
            "share": {"type": "number"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }

    async def execute(self, **arguments: Any) -> ToolResult:
        return ToolResult(content=repr(sorted(arguments.items())))


class Failing(Echo):
    name = "failing"

    async def execute(self, **arguments: Any) -> ToolResult:
        raise RuntimeError("defect")


@pytest.fixture
def registry() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register(Echo())
    registry.register(Failing())
    return registry


async def test_a_registered_tool_is_defined_and_run(registry: ToolRegistry) -> None:
    """Definitions come in the order of registration, results carry the id of their call."""
    assert [each.name for each in registry.get_definitions()] == ["echo", "failing"]
    assert registry.get_definitions()[0].parameters == Echo.parameters
    assert isinstance(registry.get("echo"), ToolPort) and registry.get("none") is None

    result = await registry.execute("echo", tool_call_id="c1", text="a", times=2)
    assert result == ToolResult(content="[('text', 'a'), ('times', 2)]", tool_call_id="c1")
    with pytest.raises(ValueError, match="echo"):
        registry.register(Echo())


async def test_an_unknown_tool_is_an_error_result(registry: ToolRegistry) -> None:
    """A model that invents a tool is told which ones there are."""
    result = await registry.execute("rm -rf", tool_call_id="c2", name="x")

    assert result.is_error and result.tool_call_id == "c2"
    assert "echo, failing" in result.content


async def test_arguments_that_do_not_fit_are_told(registry: ToolRegistry) -> None:
    """The tool does not run; the result names every problem and the arguments that there are."""
    result = await registry.execute("echo", tool_call_id="c3", times="two", volume=11)

    assert result.is_error and result.tool_call_id == "c3"
    for part in ("'text' is a required", "times: 'two' is not of type 'integer'", "'volume' was unexpected"):
        assert part in result.content


async def test_what_a_tool_raises_is_the_callers(registry: ToolRegistry) -> None:
    """Limits and reports are made in one place, above the registry."""
    with pytest.raises(RuntimeError):
        await registry.execute("failing", text="x")


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"text": "a"}, True),
        ({"text": None}, False),
        ({"text": 3}, False),
        ({"text": "a", "times": True}, False),
        ({"text": "a", "times": 2.0}, True),
        ({"text": "a", "times": 2.5}, False),
        ({"text": "a", "times": None}, True),
        ({"text": "a", "share": 1}, True),
        ({"text": "a", "share": False}, False),
        ({"text": "a", "flag": True}, True),
        ({"text": "a", "flag": 1}, False),
        ({"text": "a", "how": "loud"}, True),
        ({"text": "a", "how": "medium"}, False),
        ({"text": "a", "list": [1]}, True),
        ({"text": "a", "list": {}}, False),
    ],
)
def test_types_are_those_of_json_schema(arguments: dict[str, Any], fits: bool) -> None:
    """true is no number, 2.0 is an integer, null stands for an optional argument left out."""
    assert (problem_with(arguments, Echo.parameters) is None) == fits


def test_a_schema_that_says_nothing_allows_everything() -> None:
    """Odd schemas are the tool's business."""
    assert problem_with({"a": 1}, {}) is None
    assert problem_with({"a": 1}, {"properties": "odd"}) is None
    assert problem_with({"a": 1}, {"properties": {"a": True}}) is None
    assert problem_with({"a": 1}, {"properties": {"a": {"type": "tuple"}}}) is None


def test_a_schema_that_points_outside_allows_everything_and_fetches_nothing(monkeypatch) -> None:
    """Whoever wrote it has no request made in our name; a reference inside is followed."""
    fetched: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *asked, **_: fetched.append(asked))
    outside = {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}}
    assert problem_with({"a": 1}, outside) is None
    inside = {"$defs": {"word": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/word"}}}
    assert problem_with({"a": 1}, inside) is not None
    assert fetched == []
    with pytest.raises(Unresolvable):
        list(Draft202012Validator(outside).iter_errors({"a": 1}))
    assert fetched  # the control: what nobody has told better fetches it


def test_ten_thousand_mistakes_are_a_short_sentence() -> None:
    """The first few are named, each cut, whatever the model has sent."""
    numbers = {"properties": {"list": {"type": "array", "items": {"type": "integer"}}}}
    told = problem_with({"list": ["x" * 1000] * 10_000}, numbers)
    assert told is not None
    assert len(told) < 1200


def test_a_schema_is_examined_once(monkeypatch) -> None:
    """Not at each call of the tool."""
    seen = []
    check = Draft202012Validator.check_schema
    monkeypatch.setattr(Draft202012Validator, "check_schema", lambda one: (seen.append(one), check(one)))
    for number in range(3):
        problem_with({"a": number}, {"properties": {"a": {"type": "integer", "title": "examined once"}}})
    assert len(seen) == 1


# ── memory_write ──


async def test_memory_write_replaces_the_document_of_its_scope() -> None:
    """The whole document is replaced, in the scope and with the names that were decided outside."""
    storage = InMemoryMemory()
    bob = MemoryScope(ScopeKind.PERSON, "@bob:hs")
    tool = MemoryWriteTool(storage, S, scope=bob, turn="7")
    assert isinstance(tool, ToolPort)

    result = await tool.execute(content="- tea")
    assert not result.is_error
    await tool.execute(content="- coffee", scope="owner", session_id="x/y")
    assert (await storage.load_global_memory(bob)).text == "- coffee"
    assert (await storage.load_global_memory(OWNER)).text == ""
    versions = await storage.memory_versions(bob)
    assert [(each[0].text, *each[2:]) for each in versions] == [("- tea", S, "7"), ("- coffee", S, "7")]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("- tea\n- milk\n", ["- milk"]),
        ("# Facts\n\n- tea", ["# Facts"]),
        ("- tea", []),
        ("- milk", None),
        ("- tea and milk", None),
        ("- milk\n- tea", ["- milk"]),
        ("- tea\n- milk\n- tea", None),
    ],
)
async def test_what_of_a_memory_must_have_been_said(content: str, lines: list[str] | None) -> None:
    """The new lines, if all others stay; what stays keeps its origins. Of a newer document nothing counts."""
    storage, page = InMemoryMemory(), untrusted_origin("web", "https://evil.example")
    await storage.save_global_memory(OWNER, "- tea", origins=(page,))
    found = await MemoryWriteTool(storage, S).wording({"content": content})
    assert found == (None if lines is None else Wording(lines, kept=(page,)))
    assert (
        await MemoryWriteTool(storage, S, shown_version=lambda: 0).wording({"content": "- tea\n- x"}) is None
    )


async def test_what_stays_of_a_memory_keeps_its_order() -> None:
    """Below another heading the same line says something else; the control is a new line between them."""
    storage = InMemoryMemory()
    await storage.save_global_memory(OWNER, "# Never\n- pay Eve\n\n# Always\n- pay Bob")
    tool = MemoryWriteTool(storage, S)
    for moved in (
        "# Never\n\n# Always\n- pay Eve\n- pay Bob\n- tea",
        "# Always\n- pay Eve\n# Never\n- pay Bob\n- tea",
    ):
        assert await tool.wording({"content": moved}) is None
    found = await tool.wording({"content": "# Never\n- pay Eve\n# Always\n- pay Bob\n- tea"})
    assert found == Wording(["- tea"])


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ({"at": "tomorrow 09:00"}, ["tomorrow", "09:00"]),
        ({"at": "2030-11-22 09:00"}, ["2030-11-22", "09:00"]),
        ({"at": "09:00", "whom": "everybody"}, ["09:00", "everybody"]),
        ({"at": "09:00", "whom": "Bob, Ann and me"}, ["09:00", "Bob", "Ann", "me"]),
        ({"in_minutes": 20.0}, ["20"]),
        ({"at": "09:00", "in_minutes": 20}, ["09:00", "20"]),
        ({"at": "tomorrow"}, ["tomorrow"]),
        ({"at": "halb sieben"}, ["halb", "sieben"]),
        ({"at": ""}, None),
        ({"at": "friday 6pm"}, ["friday", "6pm"]),
        ({"at": "every day 09:00"}, None),
        ({"at": "09:00", "kind": "ask"}, None),
        ({"at": "09:00", "timezone": "Asia/Tokyo"}, None),
        ({"cron": "0 9 * * *"}, None),
        ({"every_minutes": 5}, None),
        ({"action": "remove", "id": "x", "at": "09:00"}, None),
    ],
)
async def test_what_of_a_reminder_must_have_been_said(
    arguments: dict[str, Any], numbers: list[str] | None
) -> None:
    """Text, time and people of one that comes once; a task, and what repeats, is more than its words."""
    tool = ScheduleTool(None)  # type: ignore[arg-type] - nothing is kept
    found = await tool.wording({"action": "add", "text": "tea", **arguments})
    assert found == (None if numbers is None else Wording(["tea"], numbers))


def test_only_a_new_reminder_is_a_note() -> None:
    """Jobs that end or begin again keep no words: no file that was handed on may have that done unasked."""
    tool = ScheduleTool(None)  # type: ignore[arg-type] - nothing is kept
    assert tool.is_note({"action": "add"}) and tool.is_note({"action": "add", "kind": "remind"})
    for action in ("remove", "pause", "resume"):
        assert not tool.is_note({"action": action, "id": "x"})
    assert not tool.is_note({"action": "add", "kind": "ask"})


async def test_memory_write_is_compared_with_what_the_prompt_showed() -> None:
    """A write over another session's is refused with the current text; after merging it goes through."""
    storage = InMemoryMemory()
    manager = MemoryManager(storage)
    tools = {}
    for session in (S, OTHER):
        await manager.build_messages(session, "sys", "x")
        tools[session] = MemoryWriteTool(
            storage, session, shown_version=lambda session=session: manager.shown_version(session)
        )
    assert not (await tools[S].execute(content="- fact one")).is_error

    refused = await tools[OTHER].execute(content="- fact two")
    assert refused.is_error and "- fact one" in refused.content
    assert await storage.load_global_memory(OWNER) == MemoryDocument("- fact one", 1)
    assert not (await tools[OTHER].execute(content="- fact one\n- fact two")).is_error
    assert not (await tools[OTHER].execute(content="- fact one\n- fact two\n- fact three")).is_error
    assert (await tools[S].execute(content="- fact one, changed")).is_error


async def test_without_comparison_a_fact_is_lost() -> None:
    """Negative control: tools that do not know what was shown overwrite each other."""
    storage = InMemoryMemory()
    await MemoryWriteTool(storage, S).execute(content="- fact one")
    await MemoryWriteTool(storage, OTHER).execute(content="- fact two")

    assert "fact one" not in (await storage.load_global_memory(OWNER)).text


@pytest.mark.parametrize("content", [None, 3, ["- tea"]])
async def test_memory_write_wants_a_text(content: object) -> None:
    """Anything but a string is told and changes nothing."""
    storage = InMemoryMemory()
    result = await MemoryWriteTool(storage, S).execute(content=content)

    assert result.is_error and "content" in result.content
    assert await storage.load_global_memory(OWNER) == MemoryDocument()


async def test_memory_write_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that is too long is refused with its size, the limit, and what to do."""
    storage = InMemoryMemory()
    monkeypatch.setattr("agent_core.tools.memory_write.MAX_CHARS", 100)
    tool = MemoryWriteTool(storage, S)

    result = await tool.execute(content="x" * 101)
    assert result.is_error
    assert "101" in result.content and "100" in result.content and "300 words" in result.content
    assert await storage.load_global_memory(OWNER) == MemoryDocument()
    assert not (await tool.execute(content="x" * 100)).is_error


async def test_memory_write_tells_of_a_full_disk() -> None:
    """The model learns that nothing was saved, and the turn goes on."""

    class Full(InMemoryMemory):
        async def save_global_memory(self, *args: Any, **rest: Any) -> MemoryDocument:
            raise StorageUnavailable("disk full at /secret/path")

    result = await MemoryWriteTool(Full(), S).execute(content="- tea")
    assert result.is_error and "Not saved" in result.content and "/secret" not in result.content


def test_memory_write_says_how_to_use_it() -> None:
    """Merge first, bullets, about 300 words, nothing passing; in a room also that everybody may learn it."""
    description = MemoryWriteTool(InMemoryMemory(), S).description
    for part in (
        "MEMORY.md",
        "## Your Memory",
        "Merge",
        "bullets",
        "300 words",
        "not what matters only now",
    ):
        assert part in description
    room = MemoryWriteTool(InMemoryMemory(), S, scope=MemoryScope(ScopeKind.ROOM, "a/b"))
    assert "everyone here" in room.description and "everyone here" not in description


# ── read_skill ──


async def test_read_skill_opens_skills_and_nothing_else(tmp_path: Path) -> None:
    """A name gives the body; a path gives an error."""
    tool = ReadSkillTool(SkillsLoader(BUNDLED_SKILLS))

    assert "memory_write" in (await tool.execute(skill="memory")).content
    for bad in ("../memory", "/etc/passwd", "", None):
        assert (await tool.execute(skill=bad)).is_error
