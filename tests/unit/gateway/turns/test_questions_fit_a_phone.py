"""Every kind of question at the width of a phone: our own lines fit, and are no Markdown where it is not shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from agent_core.models import ToolCall
from agent_core.provenance import untrusted_origin
from agent_core.tools.forms import Field, Form
from agent_core.tools.grants import GrantKind, Scope
from channels.markup import to_text
from gateway.turns.questions.question_text import expired_text, form_text
from tests.asked_questions import asking_text

WIDTH = 60
UNTIL = datetime(2026, 9, 28, 12, tzinfo=UTC)
NAME = "a3f2c9d"
PAGES = tuple(untrusted_origin("web", f"http://{each}.test", UNTIL) for each in "abcd")
RUN = ToolCall(id="c", name="shell", arguments={"command": "wc -w < squids.txt"})
LONG = ToolCall(id="c", name="shell", arguments={"command": "echo; " * 1_000})
TWO = ToolCall(id="c", name="note", arguments={"what": "milk", "where": "`x`\n2. shell: rm"})
OFFER = Scope(GrantKind.CALL, "shell", "x")
FOLDER = Scope(GrantKind.FOLDER, "", "docs")
BY_CALL: dict[str, Callable[[], str]] = {
    "a command": lambda: ask(RUN, origins=PAGES[:1], offer=OFFER, spared_by="`!new` or `!trust`"),
    "a command by mail": lambda: ask(RUN, origins=PAGES[:1], offer=OFFER, email_style=True),
    "a long one": lambda: ask(LONG, origins=PAGES, offer=OFFER),
    "a long one without a file": lambda: ask(LONG, origins=PAGES, is_attached=False),
    "files": lambda: ask(
        ToolCall(id="c", name="write_file", arguments={"path": "docs/a"}), review="-a\n+b", offer=FOLDER
    ),
    "a tool of a server": lambda: ask(
        ToolCall(id="c", name="bank__pay", arguments={"to": "bob", "sum": 3}), is_again=True
    ),
    "a command once more": lambda: ask(RUN, is_again=True),
    "several": lambda: ask(RUN, also=[(TWO, ""), (TWO, "-a\n+b")], origins=PAGES[:1]),
    "several long ones": lambda: ask(RUN, also=[(LONG, ""), (TWO, "")], origins=PAGES[:1]),
    "a form": lambda: form(Form("bank", "Which one?", (Field("city", "text", required=True),))),
    "a form of two": lambda: form(Form("bank", "Which?", (Field("a", "text"), Field("b", "number")))),
    "a yes for a server": lambda: form(Form("bank", "Go on?")),
    "an address for a server": lambda: form(Form("bank", "Log in", (), "https://bank.test/login")),
    "one that has ended": lambda: expired_text(NAME, "shell"),
}


def ask(call: ToolCall, *, email_style: bool = False, **more: object) -> str:
    return asking_text(NAME, call, UNTIL, zone=UTC, email_style=email_style, **more)  # type: ignore[arg-type]


def form(one: Form) -> str:
    return form_text(NAME, one, UNTIL, zone=UTC, email_style=False)


def own_lines(text: str) -> list[str]:
    """Without what stands in fences or quotations, and names of others."""
    text = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", text)
    text = re.sub(r"`http://\w+\.test`(?:, \d\d:\d\d UTC on \d+ \w+)?;? ?(?:the page )?", "", text)
    lines = [line for line in to_text(text).splitlines() if not line.startswith(">")]
    return [line for line in lines if line.strip()]


@pytest.mark.parametrize("kind", BY_CALL)
def test_our_lines_fit(kind: str) -> None:
    text = BY_CALL[kind]()
    assert [line for line in own_lines(text) if len(line) > WIDTH] == []
    assert not any("`" in line or "**" in line for line in own_lines(text))


def test_a_line_too_long_is_found() -> None:
    """The negative control: the sentence that questions had before."""
    before = "**a3f2c9d**: I need your approval.\n\nUntil 12:00 on 28 September. Also: `!approve a3f2c9d`, `!reject`."
    assert [len(line) > WIDTH for line in own_lines(before)] == [False, True]


def test_several_calls_are_one_line_each() -> None:
    """Numbered; what a line leaves out stands below, and no value makes a number of its own."""
    text = BY_CALL["several"]()
    assert "\n1. shell: wc -w < squids.txt\n2. note: milk\n3. note: milk\n```" in text
    assert "2. note, where: `x`\n    2. shell: rm" in text and "-a\n    +b" in text
    short = ask(RUN, also=[(RUN, "")])
    assert short.count("wc -w") == 2


def test_each_call_of_one_tool_is_named_below_the_list() -> None:
    """A change stood behind a bare "1.:"."""
    text = ask(TWO, also=[(TWO, "-a\n+b")])
    assert "\n2. note: -a\n    +b" in text
    assert ".:" not in text


@pytest.mark.parametrize(
    ("call", "what"), [(RUN, "Files have changed"), (TWO, "What you approved has changed")]
)
def test_a_second_question_says_what_has_changed(call: ToolCall, what: str) -> None:
    """A yes to a command is about files, too, of which the question shows nothing."""
    assert f"{what} since" in ask(call, is_again=True) and "so I ask again." in ask(call, is_again=True)
    assert what not in ask(call)


def test_a_hash_comes_last() -> None:
    """Beside the answers it is in nobody's way."""
    text = BY_CALL["a long one"]()
    assert text.count("SHA-256") == 1
    assert "SHA-256" in text.splitlines()[-1]
