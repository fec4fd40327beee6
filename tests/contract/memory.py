"""What every `MemoryPort` promises. A subclass gives the fixture ``memory``; see test_memory.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import anyio
import pytest

from agent_core.errors import CursorMoved
from agent_core.memory_ports import MemoryPort
from agent_core.messages import SessionKey
from agent_core.models import Message, ToolCall
from agent_core.provenance import untrusted_origin
from tests.clock import EPOCH, ManualClock
from tests.contract.memory_documents import DocumentContract

SESSION = "matrix/!room%3ahs.test"
OTHER = "email/<root@mail.test>"
AT = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)


def line(number: int, text: str | None = None) -> Message:
    """Message ``number`` of a conversation that takes turns."""
    return Message(
        role="user" if number % 2 == 0 else "assistant",
        content=f"message {number}" if text is None else text,
        id=f"{number // 2}.{number % 2}",
        turn=str(number // 2),
        timestamp=AT,
        sender="@alice:hs.test" if number % 2 == 0 else None,
    )


def texts(messages: object) -> list[str]:
    return [message.content for message in messages]  # type: ignore[attr-defined]


class MemoryContract(DocumentContract):
    """The promises of `MemoryPort`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    # ── history ──

    async def test_unknown_session_is_empty(self, memory: MemoryPort) -> None:
        """A session that never said anything has an empty history, cursor 0 and no summary."""
        tail = await memory.load_history(SESSION)

        assert (tail.messages, tail.total, tail.unconsolidated, tail.complete) == ((), 0, 0, True)
        assert await memory.load_consolidated_cursor(SESSION) == 0
        assert await memory.load_session_summary(SESSION) == ""
        assert await memory.sessions() == []
        await memory.sync_history(SESSION)

    async def test_an_id_that_is_no_session_key_is_a_mistake(self, memory: MemoryPort) -> None:
        """A session id that is not the text of a session key is a ValueError, not a file somewhere."""
        for bad in ("", "s1", "../../etc/passwd", "a//b", "a/b/c/d"):
            with pytest.raises(ValueError):
                await memory.load_history(bad)
            with pytest.raises(ValueError):
                await memory.append_message(bad, line(0))

    async def test_messages_come_back_as_they_went_in(self, memory: MemoryPort) -> None:
        """What is appended is loaded in order and without any change."""
        call = ToolCall(id="c1", name="look", arguments={"a": [1, "ü", None, {"b": 2.5}], "n": 10**30})
        said = [
            line(0, "zero\nlines \u2028 and \x00 and 🦑"),
            Message(role="assistant", content="", id="0.1", timestamp=AT, tool_calls=(call,)),
            Message(role="tool", content="found", id="0.2", timestamp=AT, tool_call_id="c1"),
            line(2).model_copy(update={"scope": "person:@bob:hs.test"}),
        ]
        await memory.append_message(SESSION, said[0])
        await memory.append_message(SESSION, *said[1:])
        await memory.sync_history(SESSION)

        assert list((await memory.load_history(SESSION)).messages) == said

    async def test_time_is_stamped_and_kept_in_utc(self, memory: MemoryPort, clock: ManualClock) -> None:
        """A message without a time gets the present one; a time of another zone becomes UTC."""
        summer = AT.astimezone(timezone(timedelta(hours=2)))
        await memory.append_message(
            SESSION, Message(role="user", content="a"), Message(role="user", content="b", timestamp=summer)
        )

        first, second = (await memory.load_history(SESSION)).messages
        assert first.timestamp == clock.now()
        assert second.timestamp == AT
        assert second.timestamp is not None and second.timestamp.utcoffset() == timedelta(0)

    async def test_limits_keep_the_newest(self, memory: MemoryPort) -> None:
        """Both limits drop from the beginning, and the newest message is there however long it is."""
        await memory.append_message(SESSION, *[line(number, "x" * 100) for number in range(10)])

        tail = await memory.load_history(SESSION, max_messages=3)
        assert [message.id for message in tail.messages] == ["3.1", "4.0", "4.1"]
        assert (tail.total, tail.unconsolidated, tail.complete) == (10, 10, False)
        assert tail.positions == (7, 8, 9)
        tail = await memory.load_history(SESSION, max_chars=300)
        assert [message.id for message in tail.messages] == ["4.0", "4.1"]
        for limits in ({"max_messages": 0}, {"max_chars": 0}, {"max_messages": 0, "max_chars": 0}):
            assert len((await memory.load_history(SESSION, **limits)).messages) == 1
        assert (await memory.load_history(SESSION, max_messages=10)).complete

    async def test_repeated_ids_are_left_out(self, memory: MemoryPort) -> None:
        """Appending lines again, all or some of them, in one call or several, changes nothing."""
        await memory.append_message(SESSION, line(0), line(1))
        await memory.append_message(SESSION, line(0), line(1))
        await memory.append_message(SESSION, line(1), line(2), line(2))

        tail = await memory.load_history(SESSION)
        assert texts(tail.messages) == ["message 0", "message 1", "message 2"]
        assert tail.total == 3

    async def test_messages_without_ids_are_all_kept(self, memory: MemoryPort) -> None:
        """Two equal messages without ids are two messages."""
        same = Message(role="user", content="again")
        await memory.append_message(SESSION, same, same)
        await memory.append_message(SESSION, same)

        assert (await memory.load_history(SESSION)).total == 3

    async def test_sessions_do_not_mix(self, memory: MemoryPort) -> None:
        """Each session has its own history, summary and cursor, and all are listed."""
        long = str(SessionKey("email", "<" + "x" * 400 + "@mail.test>", "t"))
        for number, session in enumerate((SESSION, OTHER, long)):
            await memory.append_message(session, line(number))
            await memory.save_session_summary(session, f"about {session}")

        for number, session in enumerate((SESSION, OTHER, long)):
            assert texts((await memory.load_history(session)).messages) == [f"message {number}"]
            assert await memory.load_session_summary(session) == f"about {session}"
        assert sorted(await memory.sessions()) == sorted((SESSION, OTHER, long))

    async def test_a_summary_alone_makes_no_session(self, memory: MemoryPort) -> None:
        """Only what has a history is listed."""
        await memory.save_session_summary(SESSION, "nothing was said")
        await memory.load_history(OTHER)

        assert await memory.sessions() == []

    async def test_the_last_message_of_several_sessions(self, memory: MemoryPort) -> None:
        """In the order asked for, with the numbers of `load_history`, and also what was reset; or none."""
        await memory.append_message(SESSION, line(0), line(1))
        await memory.append_message(OTHER, line(2), line(3))
        await memory.save_consolidation(OTHER, summary="about", cursor=2)

        other, nowhere, session = await memory.last_messages([OTHER, "matrix/nowhere", SESSION])

        assert (texts(other.messages), texts(session.messages)) == (["message 3"], ["message 1"])
        assert (other.total, other.unconsolidated, other.cursor) == (2, 0, 2)
        assert (session.total, session.unconsolidated, session.cursor) == (2, 2, 0)
        assert (nowhere.messages, nowhere.total) == ((), 0)
        assert await memory.last_messages([]) == []

    async def test_appends_at_once_are_all_kept(self, memory: MemoryPort) -> None:
        """Appends at the same time neither lose nor tear lines, and each call's lines stay together."""

        async def say(turn: int) -> None:
            await memory.append_message(SESSION, line(2 * turn), line(2 * turn + 1))

        async with anyio.create_task_group() as tasks:
            for turn in range(20):
                tasks.start_soon(say, turn)

        tail = await memory.load_history(SESSION)
        assert tail.skipped_lines == 0
        turns = [message.turn for message in tail.messages]
        assert turns[::2] == turns[1::2]
        assert sorted(turns[::2], key=str) == sorted((str(turn) for turn in range(20)), key=str)

    # ── cursor and summary ──

    async def test_history_begins_after_the_cursor(self, memory: MemoryPort) -> None:
        """What is before the cursor is not loaded any more, but counted in the total."""
        await memory.append_message(SESSION, *[line(number) for number in range(10)])
        await memory.save_consolidated_cursor(SESSION, 6)

        tail = await memory.load_history(SESSION)
        assert texts(tail.messages) == ["message 6", "message 7", "message 8", "message 9"]
        assert (tail.total, tail.unconsolidated, tail.cursor) == (10, 4, 6)
        assert tail.positions == (6, 7, 8, 9)
        assert tail.complete
        await memory.append_message(SESSION, line(10))
        assert (await memory.load_history(SESSION)).unconsolidated == 5

    async def test_cursor_stays_within_the_history(self, memory: MemoryPort) -> None:
        """A cursor beyond the end or below zero is brought to the nearest possible one."""
        await memory.append_message(SESSION, line(0), line(1))

        for given, kept in ((99, 2), (2, 2), (1, 1), (0, 0), (-5, 0)):
            await memory.save_consolidated_cursor(SESSION, given)
            assert await memory.load_consolidated_cursor(SESSION) == kept
        await memory.save_consolidated_cursor(SESSION, 2)
        assert (await memory.load_history(SESSION)).messages == ()

    async def test_summary_and_cursor_leave_each_other(self, memory: MemoryPort) -> None:
        """Saving one of the two keeps the other; saving both replaces both."""
        await memory.append_message(SESSION, *[line(number) for number in range(4)])
        await memory.save_consolidated_cursor(SESSION, 2)
        await memory.save_session_summary(SESSION, "ümläut 🦑\n\nsecond paragraph\n")
        assert await memory.load_consolidated_cursor(SESSION) == 2
        await memory.save_consolidated_cursor(SESSION, 3)
        assert await memory.load_session_summary(SESSION) == "ümläut 🦑\n\nsecond paragraph\n"

        await memory.save_consolidation(SESSION, summary="all of it", cursor=4)
        assert await memory.load_consolidated_cursor(SESSION) == 4
        assert await memory.load_session_summary(SESSION) == "all of it"

    async def test_segments_cover_the_history_from_its_beginning(self, memory: MemoryPort) -> None:
        """Pages from any position on, the cursor's included, give every message once and in order."""
        await memory.append_message(SESSION, *[line(number) for number in range(10)])
        await memory.save_consolidated_cursor(SESSION, 5)

        seen: list[str] = []
        start = 0
        while (page := await memory.load_segment(SESSION, start=start, max_messages=3)).messages:
            seen += texts(page.messages)
            start = page.positions[-1] + 1
        assert seen == [f"message {number}" for number in range(10)]
        page = await memory.load_segment(SESSION, start=5, max_messages=2)
        assert (texts(page.messages), page.positions) == (["message 5", "message 6"], (5, 6))
        assert (page.total, page.unconsolidated, page.cursor, page.complete) == (10, 5, 5, False)

    async def test_a_segment_has_a_limit_of_characters(self, memory: MemoryPort) -> None:
        """The oldest messages within it, at least one, and the rest is told to be there."""
        await memory.append_message(SESSION, *[line(number, "x" * 100) for number in range(10)])

        page = await memory.load_segment(SESSION, start=2, max_messages=9, max_chars=300)
        assert (page.positions, page.complete) == ((2, 3), False)
        page = await memory.load_segment(SESSION, start=2, max_messages=9, max_chars=0)
        assert (page.positions, page.complete) == ((2,), False)
        page = await memory.load_segment(SESSION, start=9, max_messages=9, max_chars=0)
        assert (page.positions, page.complete) == ((9,), True)

    async def test_history_and_summary_are_of_one_moment(self, memory: MemoryPort) -> None:
        """What is read of a history brings the summary of what is before the cursor."""
        await memory.append_message(SESSION, *[line(number) for number in range(4)])
        assert (await memory.load_history(SESSION)).summary == ""
        await memory.save_consolidation(SESSION, summary="they met", cursor=2)

        assert (await memory.load_history(SESSION, max_messages=1)).summary == "they met"
        assert (await memory.load_segment(SESSION, start=0, max_messages=1)).summary == "they met"

    async def test_a_summary_keeps_whose_words_are_in_it(self, memory: MemoryPort) -> None:
        """It is read with the summary, survives a change of only summary or cursor, and goes with a new record."""
        await memory.append_message(SESSION, *[line(number) for number in range(4)])
        page = (untrusted_origin("web", "https://example.org", EPOCH),)
        await memory.save_consolidation(
            SESSION, summary="x", cursor=2, private=["owner", "person:bob"], origins=page
        )
        await memory.save_session_summary(SESSION, "y")
        await memory.save_consolidated_cursor(SESSION, 3)
        for tail in (
            await memory.load_history(SESSION),
            await memory.load_segment(SESSION, start=0, max_messages=9),
        ):
            assert (tail.summary, tail.cursor, tail.private) == ("y", 3, {"owner", "person:bob"})
            assert tail.origins == page
        await memory.save_consolidation(SESSION, summary="", cursor=4)
        assert (await memory.load_history(SESSION)).private == frozenset()
        assert (await memory.load_history(SESSION)).origins == ()

    async def test_a_line_keeps_whose_words_it_is_made_of(self, memory: MemoryPort) -> None:
        """Also that there is none but the owner, which is not the same as that nothing was noted."""
        page = (untrusted_origin("web", "https://example.org", EPOCH),)
        told = [line(0).model_copy(update={"origins": origins}) for origins in (page, (), None)]
        told = [each.model_copy(update={"id": f"o{number}"}) for number, each in enumerate(told)]
        await memory.append_message(SESSION, *told)
        found = (await memory.load_history(SESSION)).messages
        assert [each.origins for each in found] == [page, (), None]

    async def test_durable_appends_are_appends(self, memory: MemoryPort) -> None:
        """Whether durable or not, lines are kept in order and once; without lines it only makes durable."""
        await memory.append_message(SESSION, line(0))
        await memory.append_message(SESSION, line(0), line(1), durable=True)
        await memory.append_message(SESSION, durable=True)
        assert texts((await memory.load_history(SESSION)).messages) == ["message 0", "message 1"]

    async def test_a_summary_of_what_is_consolidated_already_is_refused(self, memory: MemoryPort) -> None:
        """With a base that is not the cursor nothing changes: two that consolidate at once do not both count."""
        await memory.append_message(SESSION, *[line(number) for number in range(6)])
        await memory.save_consolidation(SESSION, summary="one", cursor=2, base_cursor=0)

        for base in (0, 1, 3):
            with pytest.raises(CursorMoved):
                await memory.save_consolidation(SESSION, summary="two", cursor=4, base_cursor=base)
        assert await memory.load_session_summary(SESSION) == "one"
        assert await memory.load_consolidated_cursor(SESSION) == 2
        await memory.save_consolidation(SESSION, summary="two", cursor=4, base_cursor=2)
        assert await memory.load_consolidated_cursor(SESSION) == 4
