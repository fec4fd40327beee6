"""
What a person approved was not what they saw: the text was cut at 1,500 characters without a word of the rest,
and characters that reverse others, or have no form, were shown as they are.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from agent_core.models import ToolCall
from channels.markup import to_html, to_text
from gateway.turns.questions.question_text import quote, safe_line, visible
from tests.asked_questions import asking_text, attached_text
from tests.rows import rows

UNTIL = datetime(2026, 1, 2, tzinfo=UTC)


def question(**arguments):
    call = ToolCall(id="c", name="shell", arguments=arguments)
    return asking_text("a3f2c9", call, UNTIL, zone=UTC, email_style=False)


@rows(
    "char",
    [
        *"\u202a\u202b\u202d\u202e\u2066\u2067\u2069\u200e\u200f\u061c",  # order
        *"\u200b\u2060\ufeff\u00ad\u034f\u115f\u3164\uffa0\u2800\u00a0\u2003\u180e",  # nothing to the eye
        *"\x00\x07\x08\x1b\r\x0b\x0c\x85\u2028\u2029\x7f",  # what steers
        "\U000e0041", "\U000e0100", "\ufe00", "\ud800", "\ue000",
    ],
    ids=lambda char: f"U+{ord(char):04X}",
)  # fmt: skip
def test_every_character_is_seen(char):
    """In the question about a call, in quotations and in lines: its code point stands there, and it does not."""
    code = f"‹U+{ord(char):04X}›"
    asked = question(command=f"rm a{char}b")
    assert f"rm a{code}b" in asked
    assert char not in asked
    assert visible(f"a{char}b") == f"a{code}b"
    assert char not in quote(f"a{char}b", 100)
    assert char not in safe_line(f"a{char}b")


@rows("text", ["naïve café", "日本語", "می‌خواهم", "👩‍👩‍👧 ❤️", "عربي", "क्ष", "a\nb", "x" * 1500, "e\u0301"])
def test_what_people_write_stays(text):
    """The control: scripts and emoji that need joiners are shown as they are."""
    assert visible(text) == text


def test_a_long_text_says_how_long_it_is():
    """Its beginning, its end, what is left out, its size and a hash that names it."""
    text = "harmless " * 2000 + "; rm -rf ~"
    asked = question(command=text)
    assert len(asked) < 3000
    assert "; rm -rf ~" in asked
    assert f"{len(text)} characters in all" in asked
    whole = attached_text(ToolCall(id="c", name="shell", arguments={"command": text}))
    assert text in whole
    assert hashlib.sha256(whole.encode()).hexdigest()[:16] in asked
    assert hashlib.sha256(text.encode()).hexdigest()[:16] in quote(text, 300)


def test_a_long_argument_hides_no_other():
    """Each argument has a place of its own, whatever its neighbours are."""
    asked = question(**{f"a{n}": "x" * 50_000 for n in range(10)}, to="eve@evil.test")
    assert "to: eve@evil.test" in asked
    many = question(**{f"a{n}": "x" for n in range(500)}, to="eve@evil.test")
    assert "eve@evil.test" in many and "481 more" in many


def test_markup_hides_nothing():
    """What is no text to a reader of Markdown stands there all the same, in HTML and in plain text."""
    for hidden in ("[x]: http://evil.test/secret", "<!-- secret -->", "[safe](http://evil.test/secret)", "&#115;ecret",
                   "```\nsecret\n```", "````\nsecret"):  # fmt: skip
        asked = question(command=f"a\n\n{hidden}\n\nb", other="x")
        for shown in (to_html(asked), to_text(asked)):
            for part in hidden.replace("&", "&amp;" if shown.startswith("<") else "&").split("\n"):
                if shown.startswith("<"):
                    part = part.replace("<", "&lt;").replace(">", "&gt;")
                assert part in shown, (hidden, shown)


def test_an_argument_cannot_pose_as_another():
    """The second line of a value does not begin where names do."""
    asked = question(command="ls\nto: friend@home.test", to="eve@evil.test")
    assert "\nto: eve@evil.test" in asked
    assert "\nto: friend@home.test" not in asked
