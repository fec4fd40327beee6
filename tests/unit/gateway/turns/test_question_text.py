"""A question about a call fits a phone, shows the whole call, and nothing in it can pose as our own lines."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.models import ToolCall
from agent_core.provenance import person, untrusted_origin
from agent_core.tools.grants import GrantKind, Scope
from agent_core.tools.memory_write import MemoryWriteTool
from channels.markup import to_text
from gateway.turns.questions.question_text import (
    reason_text,
    subject_of,
    trust_commands,
    visible,
)
from tests.asked_questions import asked_about, asking_text, attached_text

UNTIL = datetime(2026, 1, 2, 12, tzinfo=UTC)
PAGE = (untrusted_origin("web", "http://page.test"),)
OFFER = Scope(GrantKind.CALL, "shell", "x")


def question(tool: str, review: str = "", **arguments: Any) -> str:
    call = ToolCall(id="c", name=tool, arguments=arguments)
    return asking_text(
        "a3f2c9d",
        call,
        UNTIL,
        zone=UTC,
        email_style=False,
        review=review,
        origins=PAGE,
        offer=OFFER,
        spared_by="`!new` or `!trust`",
    )


def test_a_command_as_it_is_asked() -> None:
    """What and where, the command itself, why, and how to answer."""
    assert question("shell", command="wc -w < squids.txt") == (
        "**a3f2c9d**: I need your approval to run in the workspace:\n\n"
        "```\nwc -w < squids.txt\n```\n\n"
        "It may not be your idea: I was shown the page `http://page.test`.\n\n"
        "`yes` / `no` / `yes for an hour`, or ✅ / ❌\n\n"
        "An hour covers exactly this call of `shell`.\n\n"
        "It waits until 12:00 on 02 January.\n\n"
        "Also: `!approve a3f2c9d`, `!reject a3f2c9d`, `!grant a3f2c9d 1h`\n\n"
        "`!new` or `!trust` spares further questions because of that."
    )


BOB = person("@bob:hs.test")
WRITE = ToolCall(id="c", name="write_file", arguments={"path": "a", "content": "b"})


def asked(**more: Any) -> str:
    return asking_text("a3f2c9d", WRITE, UNTIL, zone=UTC, **{"email_style": False, **more})


def test_who_asks_stands_first_and_is_no_doubt() -> None:
    """The owner reads at once whose wish it is; only what else was read makes it somebody else's idea."""
    told = asked(origins=(BOB,), people=["@bob:hs.test"], asked_by="`@bob:hs.test`, by matrix")
    assert told.split("\n\n")[1] == "Asked by `@bob:hs.test`, by matrix." and "idea" not in told
    told = asked(origins=(*PAGE, BOB), people=["@bob:hs.test"], asked_by="`@bob:hs.test`, by matrix")
    assert "It may not be their idea: I was shown the page `http://page.test`.\n" in told
    assert "It may not be your idea: I was shown words of `@bob:hs.test`." in asked(origins=(BOB,))


def test_a_full_list_of_sources_stays_as_it_is() -> None:
    """Of twelve some may have been left out, which the question says."""
    full = (*(untrusted_origin("web", f"http://{each}.test") for each in range(11)), BOB)
    assert "and perhaps others" in asked(origins=full, people=["@bob:hs.test"])


def test_a_group_is_told_that_a_word_must_be_a_reply() -> None:
    """There a word that is no reply is not said to the bot; a mail is one anyway."""
    assert "`yes` / `no` in a reply to this, or ✅ / ❌\n" in asked(is_group=True)
    assert "reply" not in asked() + asked(is_group=True, email_style=True)


def test_a_yes_to_several_is_said_to_be_one_to_all() -> None:
    assert "`yes` / `no` to all of them, or ✅ / ❌\n" in asked(also=[(WRITE, "")])


@pytest.mark.parametrize(
    ("tool", "review", "arguments", "first"),
    [
        ("write_file", "--- a\n+++ a\n+new", {"path": "a"}, "to write a file:"),
        ("send_message", "to: bob\n\nhello", {"to": "bob"}, "to send a message:"),
        ("web_fetch", "", {"url": "https://x.test/"}, "to fetch a page:"),
        ("memory_write", "-old\n+new", {"content": "new"}, "to change my memory:"),
        ("schedule", "", {"when": "daily", "text": "water"}, "to change the schedule:"),
        ("bank__pay", "", {"amount": 3}, "before I use bank__pay:"),
    ],
)
def test_it_fits_a_phone(tool: str, review: str, arguments: dict[str, Any], first: str) -> None:
    """Up to the answers it has at most 12 lines that are not blank; none of the template is left."""
    plain = to_text(question(tool, review, **arguments))
    assert plain.splitlines()[0].endswith(first)
    before, _, _ = plain.partition("yes / no")
    assert len([line for line in before.splitlines() if line.strip()]) <= 12
    assert "what would be done" not in plain and "command:" not in plain
    assert "`" not in plain and "**" not in plain


HOSTILE = st.text(alphabet=st.sampled_from("ab `*\n\r#>\u202e\u200b\ud800!:~"), max_size=2_000)


@given(HOSTILE, HOSTILE)
def test_the_whole_call_is_seen(command: str, other: str) -> None:
    """In the question or in its file, and no line of ours can be made by an argument."""
    call = ToolCall(id="c", name="shell", arguments={"command": command, "to": other})
    whole = attached_text(call)
    asked = question("shell", command=command, to=other)
    there = (whole or asked).replace("\n    ", "\n")
    for value in (command, other):
        assert visible(value if whole else value.strip()) in there or not visible(value.strip())
    assert len(re.findall(r"(?m)^`yes` / `no`", asked)) == 1
    assert "\u202e" not in asked and "\u200b" not in asked


def test_a_command_of_a_megabyte() -> None:
    """It stands in the file whole, and the question stays short; a fence in it ends nothing."""
    command = "`" * 4 + "\n`yes` / `no`\n" + "x" * 1_000_000 + "; rm -rf ~"
    whole = attached_text(ToolCall(id="c", name="shell", arguments={"command": command}))
    assert "x" * 1_000_000 + "; rm -rf ~" in whole
    asked = question("shell", command=command)
    assert len(asked) < 2_500
    assert len(re.findall(r"(?m)^`yes` / `no`", asked)) == 1


def test_a_subject_is_one_line() -> None:
    """No newline of an argument ends a header."""
    call = ToolCall(id="c", name="shell", arguments={"command": "wc\r\nBcc: eve@evil.test"})
    assert subject_of(asked_about(call)) == "Approve? run in the workspace: wc Bcc: eve@evil.test"


async def test_lost_lines_of_the_memory_are_seen() -> None:
    """Also what a diff would call no text is shown whole."""

    class Storage:
        async def load_global_memory(self, _: object) -> Any:
            return SimpleNamespace(text="- tea\n- the cat is Tom\n", version=3)

    tool = MemoryWriteTool(Storage(), "s")  # type: ignore[arg-type]
    seen = await tool.review(content="- coffee\n")
    assert "\n-- tea" in seen.text and "\n-- the cat is Tom" in seen.text and "\n+- coffee" in seen.text
    assert seen.state == "3"
    assert "secret" in (await tool.review(content="%PDF-\0secret")).text


def test_a_message_kept_by_a_restore_says_what_an_answer_may_repeat() -> None:
    """Other reasons are their own words."""
    assert "I may have answered it then" in reason_text("restored")
    assert reason_text("no_proof") == "no proof" and reason_text(None) == "no reason given"


def test_a_file_that_taints_each_command_can_be_trusted_for_good() -> None:
    """After ``!new`` the next command reads it again; with several files no single command would do."""
    log = untrusted_origin("file", "work/jobs/a`b.log")
    assert (
        trust_commands((*PAGE, log)) == "`!new`, `!trust` or, if it is yours, `!trust file work/jobs/a'b.log`"
    )
    assert trust_commands(PAGE) == "`!new` or `!trust`"
    assert trust_commands((untrusted_origin("file", "inbox/"),)) == "`!new` or `!trust`"
    several = trust_commands((log, untrusted_origin("file", "b")))
    assert several == "`!new`, `!trust` or, for those files that are yours, `!trust file NAME`"
