"""The pages of the console that act: letting people in, searching, granting, settings. Each through real HTTP."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import anyio

from agent_core.messages import SessionKey
from agent_core.models import Message
from tests.integration.test_approvals import ANN, BOB, BOBS, deciding
from tests.integration.test_console import BAD, looking
from tests.integration.test_grants import Machine, does
from tests.integration.test_tool_approval import answers, asking, question


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


async def test_what_was_said_is_found_with_its_place(tmp_path: Path) -> None:
    """The owner's own; somebody else's only in the conversation that is opened, and the log notes which."""
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        await one.asked(f"the locker code is 4711 {BAD}", person=ANN)
        await one.asked("my locker code is 0815", person=BOB)
        with anyio.fail_after(60):
            while "4711" not in (page := await browser.page("search?q=locker+code")):
                await anyio.sleep(0.02)
        assert "0815" not in page
        assert "<script>alert" not in page
        link = re.search(r'href="/console/(conversation\?session=[^"]+#m\d+)"', page)
        assert link is not None
        opened = await browser.page(html.unescape(link[1]))
        assert "4711" in opened
        assert f'id="{link[1].partition("#")[2]}"' in opened
        assert "nothing" in await browser.page("search?q=locker&place=elsewhere")
        bobs = f"session={quote(str(SessionKey('matrix', BOBS)), safe='')}"
        with anyio.fail_after(60):
            while "0815" not in (page := await browser.page(f"search?q=locker&{bobs}")):
                await anyio.sleep(0.02)
        assert "4711" not in page
        await browser.page("search?q=locker&session=nothing", status=400)
        await browser.page("search?q=locker&days=99999999999999999999")


async def test_a_conversation_is_read_page_by_page(tmp_path: Path) -> None:
    """From its newest messages back to the first, each message once."""
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        session = str(SessionKey("matrix", f"dm-{ANN}"))
        said = [Message(role="user", content=f"number {each}.", sender=ANN) for each in range(250)]
        await one.built.memory.append_message(session, *said)
        found: list[str] = []
        path = f"conversation?session={quote(session, safe='')}"
        while path:
            page = await browser.page(path)
            found = [*re.findall(r"number \d+\.", page), *found]
            earlier = re.search(r'href="/console/(conversation[^"]+)">earlier', page)
            path = html.unescape(earlier[1]) if earlier else ""
        assert found == [each.content for each in said]


async def test_calls_like_one_are_approved_for_an_hour(tmp_path: Path) -> None:
    """By one click; the next one is not asked about, and a second click changes nothing."""
    tool = Machine()
    async with asking(tmp_path, tool) as one, looking(one) as browser:
        one.server.say(ANN, "write git status")
        _, name = await question(one, f"dm-{ANN}")
        page = await browser.page("waiting")
        assert "An hour covers exactly this call of write_down" in page
        status, after = await browser.do("calls_grant", call=name, back="waiting")
        assert (status, "for an hour" in after, "Grants" in after) == (200, True, True)
        await answers(one, f"dm-{ANN}", 1)
        assert await does(one, "git status", 2) == "so: wrote git status"
        (granted,) = await one.built.store.grants.rows()
        assert (granted.conversation, granted.until - granted.at) == (
            str(SessionKey("matrix", f"dm-{ANN}")),
            timedelta(hours=1),
        )
        status, again = await browser.do("calls_grant", call=name, back="waiting")
        assert (status, f"no tool call {name} waits" in again) == (400, True)
        await browser.do("grants_revoke", grant=granted.id, back="waiting")
        assert await one.built.store.grants.rows() == []


async def test_a_call_is_rejected_with_a_reason(tmp_path: Path) -> None:
    tool = Machine()
    async with asking(tmp_path, tool) as one, looking(one) as browser:
        one.server.say(ANN, "write rm -rf")
        _, name = await question(one, f"dm-{ANN}")
        await browser.do("calls_decide", call=name, yes="false", why=f"too much {BAD}", back="waiting")
        (answer,) = await answers(one, f"dm-{ANN}", 1)
        assert "too much" in answer
        assert "<script>alert" not in await browser.page("messages?state=all")
    assert tool.written == []
