"""Whatever is said, and whatever a conversation is called: it comes back the same, from its own file."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import anyio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind, ToolCall
from agent_core.storage import JsonlMemory
from agent_core.storage.history_lines import as_object, from_object, to_line
from agent_core.storage.history_paging import count_lines, lines_backwards, lines_forwards
from agent_core.storage.layout import folder_name, scope_from_folder
from tests.clock import ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.property.examples import examples

AT = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)
HOSTILE = st.text(
    st.one_of(
        st.characters(codec=None, categories=None),
        st.sampled_from('\n\r\x00"\\{}[]:,/.%=~\u2028\u2029\ufeff🦑\ud800\udfff'),
    ),
    max_size=60,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | HOSTILE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    content=HOSTILE,
    id=st.none() | HOSTILE,
    turn=st.none() | HOSTILE,
    sender=st.none() | HOSTILE,
    scope=st.none() | HOSTILE,
    timestamp=st.datetimes(
        timezones=st.just(UTC),
        min_value=datetime(1970, 1, 2),  # noqa: DTZ001 (the zone is put on by hypothesis)
    ),
    tool_calls=st.lists(
        st.builds(ToolCall, id=HOSTILE, name=HOSTILE, arguments=st.dictionaries(HOSTILE, JSON, max_size=2)),
        max_size=2,
    ).map(tuple),
    tool_call_id=st.none() | HOSTILE,
)
KEYS = st.builds(
    SessionKey,
    channel=HOSTILE.filter(bool),
    conversation=HOSTILE.filter(bool) | st.text(min_size=100, max_size=300),
    thread=st.none() | HOSTILE.filter(bool),
)
QUICK = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(MESSAGES, st.integers(0, 10**9))
@settings(max_examples=examples(300), deadline=None)
def test_a_message_is_one_line_and_the_same_message_again(message: Message, position: int) -> None:
    """Every message becomes exactly one line, and that line the same message."""
    raw = to_line(message, position)

    assert raw.endswith(b"\n") and raw.count(b"\n") == 1
    value = as_object(raw)
    assert value is not None and value["n"] == position
    assert from_object(value) == message


@given(st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
@example(b"[" * 100_000)
@example(b'{"content":' * 5_000)
@example(b'{"n":1e999}')
def test_any_bytes_are_a_message_or_none(raw: bytes) -> None:
    """No line of a file is an exception."""
    value = as_object(raw)
    if value is not None:
        from_object(value)


@given(KEYS, KEYS)
@settings(max_examples=examples(300), deadline=None)
@example(SessionKey("a", "b", "c"), SessionKey("a", "b/c"))
@example(SessionKey("a", "b=.c"), SessionKey("a", "b", "c"))
@example(SessionKey("..", ".."), SessionKey(".", "."))
@example(SessionKey("a", "x" * 200), SessionKey("a", "x" * 201))
def test_session_files_neither_meet_nor_leave_their_folder(one: SessionKey, other: SessionKey) -> None:
    """Different sessions have different files, all of them directly in the folder, and short names read back."""
    assert (one.file_name == other.file_name) == (one == other)
    for key in (one, other):
        name = key.file_name
        assert Path("/s", f"{name}.jsonl").parent == Path("/s")
        assert not name.startswith(".") and "/" not in name and "\x00" not in name
        assert len(name.encode()) <= 150
        assert SessionKey.parse(str(key)) == key
        if "=~" not in name:
            assert SessionKey.from_file_name(name) == key


@given(HOSTILE.filter(bool) | st.text(min_size=100, max_size=300), HOSTILE.filter(bool))
@settings(max_examples=examples(300), deadline=None)
@example("../../etc/passwd", "..")
@example("a" * 151, "a" * 152)
@example("=2e", ".")
def test_folders_of_people_neither_meet_nor_leave(one: str, other: str) -> None:
    """Different addresses have different folders, none of which can be somewhere else."""
    assert (folder_name(one) == folder_name(other)) == (one == other)
    for name in (one, other):
        folder = folder_name(name)
        assert Path("/p", folder).parent == Path("/p") and folder not in (".", "..", "")
        assert len(folder.encode()) <= 150
        if "=~" not in folder:
            assert scope_from_folder(folder) == name


@given(st.lists(st.binary(max_size=300).map(lambda raw: raw.replace(b"\n", b"")), max_size=40), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_lines_are_the_same_from_both_ends(lines: list[bytes], ended: bool) -> None:
    """Reading backwards, forwards and counting agree with each other, whatever the blocks cut."""
    raw = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    wanted = raw.split(b"\n")[: -1 if raw.endswith(b"\n") else None] if raw else []

    def read_at(handle: int, size: int, offset: int) -> bytes:
        return raw[offset : offset + size]

    backwards = list(lines_backwards(0, len(raw), max_line_bytes=1000, read_at=read_at))
    forwards = list(lines_forwards(0, 0, max_line_bytes=1000, read_at=read_at))
    assert [line for _, line in reversed(backwards)] == wanted
    assert forwards == list(reversed(backwards))
    assert count_lines(0, 0, len(raw), read_at=read_at) == len(wanted)
    for offset, line in forwards:
        assert line is not None and raw[offset : offset + len(line)] == line


def test_lines_longer_than_blocks_and_limits() -> None:
    """A line over several blocks is whole; one over the limit is None and does not shift its neighbours."""
    raw = b"a" * 70_000 + b"\n" + b"b" * 400_000 + b"\n" + b"c" * 200_000

    def read_at(handle: int, size: int, offset: int) -> bytes:
        return raw[offset : offset + size]

    wanted = [(0, b"a" * 70_000), (70_001, None), (470_002, b"c" * 200_000)]
    assert list(lines_forwards(0, 0, max_line_bytes=300_000, read_at=read_at)) == wanted
    backwards = list(lines_backwards(0, len(raw), max_line_bytes=300_000, read_at=read_at))
    assert backwards == list(reversed(wanted))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.lists(MESSAGES, min_size=1, max_size=3)),
        st.tuples(st.just("cursor"), st.integers(-2, 12)),
        st.tuples(st.just("summary"), HOSTILE),
        st.tuples(st.just("both"), st.tuples(HOSTILE, st.integers(0, 12))),
        st.tuples(st.just("memory"), HOSTILE),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=10,
)


@given(STEPS, KEYS, st.none() | st.integers(0, 5), st.none() | st.integers(0, 200))
@QUICK
def test_files_and_twin_always_agree(
    steps: list[tuple[str, object]], key: SessionKey, max_messages: int | None, max_chars: int | None
) -> None:
    """After any steps, restarts among them, both memories answer alike, and the history only ever grew."""

    async def main(home: Path) -> None:
        clock = ManualClock()
        files, twin = JsonlMemory(home, clock=clock), InMemoryMemory(clock=clock)
        scope = MemoryScope(ScopeKind.ROOM, str(key))
        path = files.layout.history(key)
        for name, value in steps:
            before = path.read_bytes() if path.exists() else b""
            for memory in (files, twin):
                match name, value:
                    case "say", list(messages):
                        await memory.append_message(str(key), *messages)
                    case "cursor", int(cursor):
                        await memory.save_consolidated_cursor(str(key), cursor)
                    case "summary", str(text):
                        await memory.save_session_summary(str(key), text)
                    case "both", (str(text), int(cursor)):
                        await memory.save_consolidation(str(key), summary=text, cursor=cursor)
                    case "memory", str(text):
                        await memory.save_global_memory(scope, text)
            if name == "reopen":
                files = JsonlMemory(home, clock=clock)
            assert not path.exists() or path.read_bytes().startswith(before)
            limits = {"max_messages": max_messages, "max_chars": max_chars}
            assert await files.load_history(str(key), **limits) == await twin.load_history(str(key), **limits)
            everything = {"start": 0, "max_messages": 100}
            assert await files.load_segment(str(key), **everything) == await twin.load_segment(
                str(key), **everything
            )
            assert await files.load_session_summary(str(key)) == await twin.load_session_summary(str(key))
            assert await files.memory_versions(scope) == await twin.memory_versions(scope)
            assert await files.load_global_memory(scope) == await twin.load_global_memory(scope)
            assert await files.sessions() == await twin.sessions()

    with tempfile.TemporaryDirectory() as home:
        anyio.run(main, Path(home))
