"""When a conversation is consolidated, and where it is cut."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core.memory.consolidation.consolidation_policy import (
    ConsolidationRules,
    accept_summary,
    conversation_text,
    keep_for,
    plan,
    sentence_budget,
    too_long_to_keep,
)
from agent_core.memory.consolidation.prompts import addition_messages, consolidation_messages, meta_messages
from agent_core.models import HistoryTail, Message, ToolCall
from agent_core.prompt_budget import TokenEstimate
from tests.clock import EPOCH

GUESS = TokenEstimate()


def tail_of(*messages: Message, cursor: int = 0) -> HistoryTail:
    count = len(messages)
    return HistoryTail(
        messages, cursor + count, count, cursor=cursor, positions=tuple(range(cursor, cursor + count))
    )


def said(roles: str, turns: str = "") -> list[Message]:
    """``u``ser, ``a``ssistant, ``t``ool or ``c``all by letter; letters of ``turns`` name turns."""
    names = {"u": "user", "a": "assistant", "t": "tool", "c": "assistant"}
    return [
        Message(
            role=names[role],  # type: ignore[arg-type]
            content=f"m{number}",
            turn=turns[number] if turns else None,
            tool_calls=(ToolCall(id="x", name="y"),) if role == "c" else (),
            tool_call_id="x" if role == "t" else None,
        )
        for number, role in enumerate(roles)
    ]


@pytest.mark.parametrize(
    ("messages", "sentences"), [(0, 5), (49, 5), (59, 5), (60, 6), (100, 10), (200, 20), (500, 50)]
)
def test_a_sentence_for_ten_messages_and_five_at_least(messages: int, sentences: int) -> None:
    """The table of the seeds."""
    assert sentence_budget(messages) == sentences


@pytest.mark.parametrize(
    ("threshold", "ratio", "keep"), [(100, 0.2, 20), (1, 0.2, 1), (3, 0.34, 1), (5, 0.4, 2), (10, 0.99, 9)]
)
def test_how_many_are_kept(threshold: int, ratio: float, keep: int) -> None:
    """A part of the threshold, rounded down, at least one."""
    assert ConsolidationRules(threshold, ratio).keep == keep


@pytest.mark.parametrize(
    ("threshold", "ratio"), [(0, 0.2), (-1, 0.2), (100, 0.0), (100, 1.0), (100, -0.1), (100, 2.0)]
)
def test_impossible_rules_are_refused(threshold: int, ratio: float) -> None:
    """No threshold below one, no share outside of nought to one."""
    with pytest.raises(ValueError, match="cannot consolidate"):
        ConsolidationRules(threshold, ratio)


def test_due_above_the_threshold_only() -> None:
    """At the threshold it is not yet due."""
    rules = ConsolidationRules(10, 0.2)
    assert keep_for(tail_of(*said("ua" * 5)), rules, GUESS) is None
    assert keep_for(tail_of(*said("ua" * 5 + "u")), rules, GUESS) == 2


def test_due_by_tokens_keeps_what_has_room() -> None:
    """Above the limit for tokens the newest stay within their share, one at least and never more than usual."""
    long = [Message(role="user", content="some words " * 100) for _ in range(10)]
    cost = GUESS.message(long[0])
    for max_tokens, kept in ((cost * 10, None), (cost * 9, 1), (cost * 5, 1)):
        assert keep_for(tail_of(*long), ConsolidationRules(100, 0.2, max_tokens=max_tokens), GUESS) == kept
    assert keep_for(tail_of(*long), ConsolidationRules(100, 0.5, max_tokens=cost * 8), GUESS) == 4
    assert keep_for(tail_of(*long), ConsolidationRules(4, 0.5, max_tokens=cost * 8), GUESS) == 2


@pytest.mark.parametrize(
    ("roles", "turns", "keep", "cut"),
    [
        ("uaua", "", 2, 2),
        ("uaua", "", 1, 2),  # not between the last question and its answer
        ("ua", "", 1, 0),  # one pair is not torn
        ("uuuu", "", 1, 3),  # questions without answers are their own turns
        ("uuauua", "111234", 2, 4),
        ("uuauua", "aaabbb", 2, 3),  # questions that were answered together stay together
        ("uaaaaaua", "", 3, 6),
        ("ua" + "a" * 6, "", 3, 5),
        ("ucta" + "ua", "", 1, 4),
        ("ctctctct", "", 2, 6),
        ("aaaa", "", 1, 3),
        ("tttt", "", 1, 0),
    ],
)
def test_no_question_is_torn_from_its_answer(roles: str, turns: str, keep: int, cut: int) -> None:
    """The cut goes back to the nearest question, else forward, else where at least no answer loses its question."""
    segment = plan(tail_of(*said(roles, turns), cursor=7), keep, ConsolidationRules(100), GUESS)

    assert (0 if segment is None else segment.end - 7) == cut
    if segment is not None:
        assert (segment.start, len(segment.messages)) == (7, cut)


@given(
    st.text("uact", min_size=1, max_size=40),
    st.integers(1, 20),
    st.integers(20, 4000),
)
@settings(max_examples=300, deadline=None)
def test_a_segment_is_always_sound(roles: str, keep: int, segment_tokens: int) -> None:
    """It begins at the cursor, leaves the newest, never ends between question and answer, and fits a call."""
    messages = [
        each.model_copy(update={"content": "some words " * (number % 7 * 10)})
        for number, each in enumerate(said(roles))
    ]
    rules = ConsolidationRules(100, segment_tokens=segment_tokens)
    segment = plan(tail_of(*messages), keep, rules, GUESS)
    if segment is None:
        return
    assert segment.start == 0 < segment.end < len(messages)
    assert segment.messages == tuple(messages[: segment.end])
    assert not (messages[segment.end - 1].role == "user" and messages[segment.end].role == "assistant")
    assert GUESS.text(conversation_text(segment.messages, segment_tokens, GUESS)) <= segment_tokens + 40


def test_a_position_that_cannot_be_read_shifts_nothing() -> None:
    """The cut is a position, not a count of messages."""
    page = HistoryTail(tuple(said("uauaua")), 9, 9, positions=(0, 1, 2, 5, 7, 8))
    segment = plan(page, 2, ConsolidationRules(5), GUESS)
    assert segment is not None
    assert (segment.end, len(segment.messages)) == (7, 4)


def test_a_conversation_as_text() -> None:
    """Who said what, the day where it changes, no tools, no empty lines."""
    one = Message(role="user", content=" hello\nworld ", timestamp=EPOCH)
    messages = [
        one,
        Message(role="tool", content="x"),
        Message(role="assistant", content=""),
        Message(role="assistant", content="hi"),
    ]
    assert conversation_text(messages, 1000, GUESS) == "(Thu 2026-01-01)\nUSER: hello\nworld\nASSISTANT: hi"
    assert conversation_text([Message(role="tool", content="x")], 1000, GUESS) == ""


def test_days_are_those_of_the_owners_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said after midnight at home belongs to that day, whatever day it was in UTC; one line a day."""
    texts = [
        Message(role="user", content=str(hour), timestamp=datetime(2026, 11, 11, hour, tzinfo=UTC))
        for hour in (20, 22, 23)
    ]
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        text = conversation_text(texts, 1000, GUESS)
        late = conversation_text([texts[0].model_copy(update={"timestamp": EPOCH}), *texts], 1000, GUESS)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text == "(Thu 2026-11-12)\nUSER: 20\nUSER: 22\nUSER: 23"
    assert late.count("(") == 2


@pytest.mark.parametrize(
    ("text", "is_long"),
    [
        ("彼女は猫を飼っていて、名前はミンカです。" * 70, True),
        ("彼女は猫を飼っていて、名前はミンカです。" * 40, False),
        ("她养了一只猫，名字叫明卡。" * 120, True),
        ("เธอเลี้ยงแมวชื่อมิงกา" * 70, True),
        ("고양이 이름은 민카입니다. " * 201, True),
        ("Её кошку зовут Минка. " * 151, True),
        ("Её кошку зовут Минка. " * 149, False),
    ],
)
def test_a_summary_is_too_long_in_every_script(text: str, is_long: bool) -> None:
    """Six hundred words are counted where no blanks stand between words, too."""
    assert too_long_to_keep(text, 1_000_000, GUESS) == is_long


def test_summaries_are_asked_for_with_days_and_changes() -> None:
    """All requests ask for what replaces what; those that see the conversation ask for dates."""
    for asked in (consolidation_messages("x", 5), addition_messages("x", ["y"]), meta_messages("x", 8)):
        assert "before: …" in asked[1].content
    assert "not “yesterday”" in consolidation_messages("x", 5)[1].content


def test_what_is_taken_for_a_summary() -> None:
    """Short answers as they are, long ones up to a sentence, copies not at all."""
    source = " ".join(f"word{number}" for number in range(400))
    assert accept_summary("  Fine. ", source, 5) == "Fine."
    assert accept_summary(source, source, 5) is None
    assert accept_summary("   ", source, 5) is None
    cut = accept_summary("A sentence. " * 1000, source, 5)
    assert cut is not None and len(cut) <= 3000 and cut.endswith("A sentence.")
    assert accept_summary("x" * 10_000, source, 5) == "x" * 3000
