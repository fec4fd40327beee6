"""Control tokens of templates are not shown, and only Harmony's final channel is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_core.llm.control_tokens import ControlTokens
from agent_core.llm.reasoning import ReasoningFilter, ReasoningHabit
from tests.rows import rows

RAW = [
    (
        "<|channel|>analysis<|message|>CANARY<|end|><|start|>assistant<|channel|>final<|message|>Hello",
        "Hello",
    ),
    ("<|channel|>analysis<|message|>CANARY<|channel|>final<|message|>Hello<|return|>", "Hello"),
    ("<|start|>assistant<|channel|>final <|constrain|>text<|message|>Hello<|end|>", "Hello"),
    ('<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"CANARY": 1}<|call|>', ""),
    ("<|channel|>analysis<|message|>CANARY", ""),
    ("Hello<|im_end|>", "Hello"),
    ("Hello<|im_end|>\n<|im_start|>user\nCANARY", "Hello"),
    ("<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\nCANARY", "Hello"),
    ("Hello<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nCANARY", "Hello"),
    ("<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>", "\n\nHello"),
    ("Hello</s>", "Hello"),
    ("Hello</s>\nUser: CANARY", "Hello"),
    ("Hello<|end|>user\nCANARY", "Hello"),
    ("Hello<|endoftext|>Human: CANARY", "Hello"),
    ("Hello<|im_e", "Hello"),
]
TALK = [
    "It ends with `<|im_end|>` there.",
    "```\n<|im_start|>user\nhello<|im_end|>\n```\nThat is ChatML.",
    "<s>old</s>",
    "It cost <s>10</s> 8 euros.",
    "a < b and c <| d |> e",
    "<|unknown|> stays",
    "The user: nobody.",
    "one `tick\nand <b>more</b>",
    "<",
    "</",
    "``",
]


def filtered(pieces) -> str:
    tokens = ControlTokens()
    return "".join(tokens.feed(piece) for piece in pieces) + tokens.flush()


@rows(("text", "expected"), RAW)
def test_no_token_and_no_other_speaker_is_shown(text: str, expected: str) -> None:
    """As a whole and a character at a time; what is shown on the way is a beginning of the answer."""
    assert filtered([text]) == filtered(text) == expected
    thoughts = ReasoningFilter(ReasoningHabit())
    shown = ""
    for char in text:
        shown += thoughts.feed(char)
        assert expected.startswith(shown)
    assert shown + thoughts.flush() == expected


@rows("text", TALK)
def test_talk_about_tokens_stays(text: str) -> None:
    """Control: in code, struck out in HTML, or something that only begins like a token."""
    assert filtered([text]) == filtered(text) == text


def test_text_behind_an_end_is_not_lost() -> None:
    """Nobody's answer ends in the middle because it names a token in plain words."""
    assert filtered(["The token <|im_end|> ends a message."]) == "The token  ends a message."


PARTS = "<|start|> <|channel|> <|message|> <|end|> <|im_start|> </s> <s> ` ``` a user final assistant analysis < <|"


@given(st.lists(st.sampled_from([*PARTS.split(), " ", "\n"])), st.data())
def test_cuts_make_no_difference(parts: list[str], data: st.DataObject) -> None:
    """However a stream is cut, the same is shown."""
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert filtered(pieces) == filtered([text])


@rows("unit", ["<|", "`", "<|end|>", " ", "<|start|>a", "</s>", "<|channel|>", "a<|end|> "])
def test_it_takes_as_long_as_the_text(unit: str) -> None:
    """What waits for a decision never grows."""
    tokens = ControlTokens()
    text = unit * (20_000 // len(unit))
    for start in range(0, len(text), 7):
        tokens.feed(text[start : start + 7])
        assert len(tokens._waiting) + len(tokens._after) + len(tokens._header) <= 250
    tokens.flush()
