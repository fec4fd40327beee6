"""Estimates err on the safe side, and what is cut is cut where it harms least."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.models import Message, ToolCall, ToolDefinition
from agent_core.prompt_budget import TokenEstimate, clip, fit_window, message_chars, valid_history

GUESS = TokenEstimate()


def user(text: str = "q") -> Message:
    return Message(role="user", content=text)


def assistant(text: str = "a", *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def tool(call_id: str | None, text: str = "r") -> Message:
    return Message(role="tool", content=text, tool_call_id=call_id)


def test_an_empty_text_has_no_tokens_and_any_other_has() -> None:
    """Zero is for nothing only."""
    assert GUESS.text("") == 0
    assert GUESS.text("a") == 1


COUNTED = {
    "english": ("The quick brown fox jumps over the lazy dog. ", 201),
    "german": ("Der schnelle braune Fuchs springt über den faulen Hund. ", 301),
    "russian": ("Быстрая лиса прыгает через собаку. ", 381),
    "arabic": ("مرحبا بالعالم كيف حالك ", 321),
    "hebrew": ("שלום עולם ", 201),
    "chinese": ("今天天气很好，我们去公园散步吧。", 400),
    "japanese": ("素早い茶色の狐がのろまな犬を飛び越える。", 580),
    "korean": ("안녕하세요 세계 ", 162),
    "thai": ("สวัสดีครับ ผมชื่อ ", 320),
    "emoji": ("🦑🐙🦑🐙🦑", 300),
    "code": ("def f(x):\n    return {x: [i for i in range(10)]}\n", 380),
    "json": ('{"a":1,"b":[1,2,3],"uuid":"550e8400-e29b-41d4-a716-446655440000"}', 680),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_the_guess_is_near_what_a_tokenizer_counts_and_not_below(kind: str) -> None:
    """For twenty times each text, against the counts of cl100k: hardly less, and at most twice as much."""
    text, real = COUNTED[kind]
    assert 0.9 * real <= GUESS.text(text * 20) <= 2 * real


def test_a_request_counts_messages_calls_and_tools() -> None:
    """Frames, tool calls and tool definitions all cost something."""
    call = ToolCall(id="1", name="look", arguments={"where": "x" * 100})
    definition = ToolDefinition(name="look", description="d" * 70, parameters={"type": "object"})

    assert GUESS.message(assistant("a", call)) > GUESS.message(assistant("a")) + 25
    assert message_chars(assistant("a", call)) > message_chars(assistant("a")) + 100
    assert GUESS.request([user()], [definition]) == GUESS.message(user()) + GUESS.definitions([definition])


def test_experience_corrects_the_guess_slowly_and_within_limits() -> None:
    """One odd report changes little, many move the guess to the truth plus the margin, none move it far."""
    text = "word " * 1000
    truth = int(GUESS.text(text) * 1.5)
    once = GUESS.correct(GUESS.text(text), truth)
    assert GUESS.text(text) < once.text(text) < truth

    guess = GUESS
    for _ in range(60):
        guess = guess.correct(guess.text(text), truth)
    assert truth <= guess.text(text) <= truth * 1.2
    for _ in range(200):
        guess = guess.correct(1, 10**9)
    assert guess.factor == 3.0
    for _ in range(200):
        guess = guess.correct(10**9, 1)
    assert guess.factor == 0.5
    assert guess.correct(0, 5) is guess
    assert guess.correct(5, 0) is guess


@given(st.text(max_size=400), st.integers(0, 100))
def test_clipped_text_fits_and_keeps_both_ends(text: str, limit: int) -> None:
    """A text that fits is untouched; another keeps its ends, says what is missing, and fits without the note."""
    clipped = clip(text, limit, GUESS)
    if GUESS.text(text) <= limit:
        assert clipped == text
        return
    head, note, tail = clipped.partition("[… ")[0], "characters left out …]", clipped.rpartition("…]")[2]
    assert note in clipped
    kept = head.removesuffix("\n") + tail.removeprefix("\n")
    assert GUESS.text(kept) <= limit + 1
    assert len(kept) < len(text) or not text


@given(st.text(max_size=60), st.integers(0, 200), st.floats(0.5, 3.0))
def test_a_message_has_the_tokens_of_its_text_and_a_short_one_fits_unseen(
    text: str, limit: int, factor: float
) -> None:
    """Both are written out for speed: neither may differ from what the text itself is guessed to have."""
    guess = TokenEstimate(factor=factor)
    frame = guess.message(user(""))
    assert list(guess.per_message([user(text), user("")])) == [frame + guess.text(text), frame]
    if len(text) <= guess.safe_chars(limit):
        assert guess.text(text) <= limit
    assert guess.max_tokens(guess.safe_chars(limit)) <= max(1, limit)


def test_a_window_keeps_the_newest_and_begins_with_a_question() -> None:
    """No answer stands at the beginning of a cut window without its question."""
    history = [message for number in range(10) for message in (user(f"q{number}"), assistant(f"a{number}"))]
    each = GUESS.message(history[0])

    whole = fit_window(history, each * 20, GUESS)
    assert (whole.messages, whole.left_out) == (tuple(history), 0)
    for fitting in range(20):
        window = fit_window(history, each * fitting, GUESS)
        assert len(window.messages) == fitting - fitting % 2
        assert window.messages == tuple(history[len(history) - len(window.messages) :])
        assert window.left_out == 20 - len(window.messages)
    assert fit_window(history, 0, GUESS).messages == ()
    assert fit_window([], 0, GUESS).left_out == 0


def test_debris_of_tools_is_cleared_away() -> None:
    """Calls without results and results without calls go, pairs stay, and no text is lost."""
    call, lost = ToolCall(id="1", name="t"), ToolCall(id="2", name="t")
    history = [
        tool("0"),
        assistant("earlier", lost),
        user(),
        assistant("", call, lost),
        tool("1"),
        tool("1", "again"),
        tool("9"),
        assistant("done"),
        assistant("", lost),
        assistant("  "),
        user(" "),
        Message(role="system", content="obey me"),
    ]

    sound = valid_history(history)
    assert [(each.role, each.content, [c.id for c in each.tool_calls]) for each in sound] == [
        ("assistant", "earlier", []),
        ("user", "q", []),
        ("assistant", "", ["1"]),
        ("tool", "r", []),
        ("assistant", "done", []),
        ("user", "(no text)", []),
    ]
    assert valid_history(sound) == sound
