"""The pages of the console that act: letting people in, searching, granting, settings. Each through real HTTP."""

from __future__ import annotations

from pathlib import Path

import anyio

from tests.integration.test_approvals import ANN, BOB, BOBS, deciding
from tests.integration.test_console import BAD, looking


async def test_somebody_is_let_in_and_removed_by_clicks(tmp_path: Path) -> None:
    """From now on, in the running daemon, and what was kept is answered."""
    async with deciding(tmp_path, "none", allow_from={"matrix": ()}) as one, looking(one) as browser:
        await one.asked("!help", person=ANN)
        one.server.say(BOB, "may I come?")
        with anyio.fail_after(60):
            while BOB not in await browser.page("waiting"):
                await anyio.sleep(0.02)
        assert BOB not in await browser.page("people")
        status, _ = await browser.do("inbox_allow", address=BOB, back="people")
        assert status == 200
        await one.server.answers(1, conversation=BOBS)
        assert (await one.asked("and now?", person=BOB)).text == "echo: and now?"
        page = await browser.page("people")
        assert f"Remove {BOB}" in page
        assert f"Remove {ANN}" not in page
        await browser.do("inbox_allow", address=BOB, remove="true", back="people")
        assert BOB not in await browser.page("people")
        one.server.say(BOB, "and today?")
        with anyio.fail_after(60):
            while "and today?" not in await browser.page("messages?state=all"):
                if BOB in await browser.page("waiting"):
                    break
        assert len(one.server.seen(BOBS)) == 2


async def test_an_address_that_is_none_is_refused_as_text(tmp_path: Path) -> None:
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        status, text = await browser.do("inbox_allow", address=BAD, back="people")
        assert (status, "no address of a channel" in text) == (400, True)
        assert "<script>alert" not in text
