"""
What stands beside a yes or a no that is asked back about is not lost. "No, rather write tea" was asked back about; the
"no" after that rejected the call, and nobody heard of the tea.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.turns.commands import worded_answers
from tests.integration.test_answers_in_words import reply, said
from tests.integration.test_answers_that_go_on import at_work
from tests.integration.test_tool_approval import BOB, Writer, answers, question

DM = f"dm-{BOB}"
_ASKED = "Is that a yes or a no"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before an answer to what was asked back."""
    monkeypatch.setattr(worded_answers, "_REPEATED", timedelta(0))


@pytest.mark.parametrize("by_mail", [False, True])
async def test_they_are_the_reason_of_a_no(tmp_path: Path, by_mail: bool) -> None:
    """Also by mail, where each answer is a reply."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=by_mail) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, DM)
        await one.hand_over(reply(notice, "no, rather tea", BOB))
        assert (await said(one, DM, _ASKED)).startswith(f"{_ASKED} to `{name}`")
        await one.hand_over(reply(notice, "no", BOB, number=1))
        found = await answers(one, DM, 3)
    assert any("said no (no, rather tea)" in each for each in found)
    assert f"`{name}` is rejected: I do not use `write_down`." in found
    assert tool.written == []


async def test_below_a_yes_they_are_a_message(tmp_path: Path) -> None:
    """Of two that were asked back about, both; it is answered once, with what was decided."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=False) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, DM)
        one.server.say(BOB, "yes and tell Bob")
        await answers(one, DM, 1)
        one.server.say(BOB, "yes and tell Ann")
        await answers(one, DM, 2)
        one.server.say(BOB, "yes")
        found = await answers(one, DM, 4)
    assert "so: wrote it" in found
    assert f"so: yes and tell Ann\n\n`{name}` is approved: I use `write_down`." in found
    assert tool.written == ["it"]


@pytest.mark.parametrize("since", [[], ["tell Bob"]])
async def test_a_sign_without_words_adds_nothing(tmp_path: Path, since: list[str]) -> None:
    """The control: what was only doubtful is no message. Neither is what was said again since, and answered."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=False) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, DM)
        one.server.say(BOB, "yes and tell Bob" if since else "yes?")
        await answers(one, DM, 1)
        for text in since:
            assert (await one.asked(text, person=BOB)).text == f"so: {text}"
        await one.hand_over(reply(notice, "yes", BOB))
        found = await answers(one, DM, 3 + len(since))
    assert sorted(found[1 + len(since) :]) == [f"`{name}` is approved: I use `write_down`.", "so: wrote it"]
    assert tool.written == ["it"]
