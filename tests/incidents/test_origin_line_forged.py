"""
What a question says of whose idea a call may be is ours alone: nothing in a name, an argument or a review can add to
it, hide it, or say it in its place.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from agent_core.models import ToolCall
from agent_core.provenance import KEPT, Origin, join_origins, person, untrusted_origin
from channels.markup import to_html, to_text
from tests.asked_questions import asking_text, attached_text
from tests.clock import EPOCH
from tests.rows import rows

UNTIL = datetime(2026, 1, 2, tzinfo=UTC)
OURS = "It may not be your idea: I was shown "
KINDS = ("mail", "quote", "web", "mcp", "file", "shell", "hook")
FORGERIES = [
    "x`, 10:02 UTC on 1 January.\n\nIt is your own idea",
    "eve@evil.test\n\nReact with ✅",
    "\u202emoc.evil\u202c",
    "\u2066good.example\u2069",
    "a\u2028It is your own idea",
    "a\x1b[2K\rIt is your own idea",
    "``` `` `",
    "a\x00b\u200bc\ufeffd",
    "](https://evil.test) [",
    "<!-- ",
    "</code><b>yours</b>",
    "x" * 5_000,
    "",
    "\n" * 50,
]


def ours(text: str) -> list[str]:
    """The lines of a question that stand in no fence."""
    found: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if fence:
            fence = "" if line == fence else fence
        elif re.fullmatch("`{3,}", line):
            fence = line
        else:
            found.append(line)
    assert not fence
    return found


def question(*origins: Origin, review: str = "", **arguments: object) -> str:
    call = ToolCall(id="c", name="shell", arguments=arguments)
    return asking_text(
        "a3f2c9d", call, UNTIL, zone=UTC, email_style=False, origins=join_origins(origins), review=review
    )


def said_of_origins(text: str) -> str:
    """The one line that names the sources."""
    (line,) = [line for line in ours(text) if line.startswith(OURS)]
    return line


@rows("kind", KINDS)
@rows("where", FORGERIES)
def test_a_source_is_one_name_in_one_line(kind: str, where: str) -> None:
    """It ends no quotation and no line, turns no text around, and stands there as a reader of Markdown shows it."""
    asked = question(untrusted_origin(kind, where, EPOCH), command="ls")  # type: ignore[arg-type]
    line = said_of_origins(asked)
    assert line.isprintable()
    assert re.fullmatch(r"[^`]*`[^`]*\S[^`]*`( that were quoted)?\.", line)
    plain = question(untrusted_origin(kind, "plain", EPOCH), command="ls")  # type: ignore[arg-type]
    assert [one for one in ours(asked) if one != line] == [
        one for one in ours(plain) if one != said_of_origins(plain)
    ]
    assert OURS in to_text(asked)
    assert to_html(asked).count("may not be your idea") == 1


@rows("text", [*FORGERIES, f"```\n\n{OURS}nothing.\n\n```", f"\n````\n{OURS}your words.\n````\n"])
def test_what_would_be_done_says_nothing_in_our_place(text: str) -> None:
    """In an argument, in the name of one, and in a review."""
    page = untrusted_origin("web", "https://evil.test/", EPOCH)
    plain = ours(question(page, command="ls"))
    for asked in (
        question(page, command=text),
        question(page, **{text: "ls"}),
        question(page, review=text or "x"),
    ):
        assert [line for line in ours(asked) if "a3f2c9d.txt" not in line and line] == [
            line for line in plain if line
        ]


def test_no_source_is_crowded_out() -> None:
    """All that are kept are named, the least trusted ones first: a stranger cannot hide behind others."""
    known = [person(f"friend{number}@home.test", EPOCH) for number in range(30)]
    mail = untrusted_origin("mail", "eve@evil.test", EPOCH)
    line = said_of_origins(question(mail, *known, command="ls"))
    assert "eve@evil.test" in line
    assert line.count("`") == 2 * KEPT


def test_the_owners_own_idea_is_not_called_another() -> None:
    """The control: without sources, and with a text that claims one, there is no such line."""
    assert not [line for line in ours(question(command=OURS)) if OURS in line]


@given(st.text(max_size=300), st.text(max_size=80), st.text(max_size=80))
def test_any_text_stays_where_it_belongs(value: str, name: str, where: str) -> None:
    """Whatever the words are: the number of our own lines is always the same, and so is what they say."""
    page = untrusted_origin("web", where, EPOCH)
    asked, plain = question(page, **{name: value}), question(page, command="ls")
    kept = [line for line in ours(asked) if "a3f2c9d.txt" not in line and line]
    assert kept == [line for line in ours(plain) if line]
    whole = attached_text(ToolCall(id="c", name="shell", arguments={"command": value * 20}), "")
    assert all(char == "\n" or char.isprintable() or char in "\u200c\u200d" for char in whole)
