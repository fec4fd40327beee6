"""
The console as its owner uses it: every page and every kind of decision, by clicks in a real browser, at a daemon
between a real homeserver and a real mail server. ``SQUIDBOT_SCREENSHOT=1`` renews a picture of the manual.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from aiohttp import web
from anyio.to_thread import run_sync

from gateway.operations.http.console.console_views import VIEWS
from tests.daemon import Daemon, one_model
from tests.doubles.openai_server import Call, FakeOpenAI, Say, Status
from tests.integration.test_console_browser import Page, browsing
from tests.integration.test_console_chat import come_in, picture, with_console
from tests.integration.test_gateway_e2e import Town, town

__all__ = ["town"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]
_WRITE = re.compile(r"write (\w+) into (\S+)")


class Helper(FakeOpenAI):
    """Writes a file when it is asked to, takes its time or fails when it is told to, and else echoes."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.is_broken = True

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        last = body["messages"][-1]
        asked = next(str(each["content"]) for each in reversed(body["messages"]) if each["role"] == "user")
        line = asked.strip().splitlines()[-1]
        reply: Say | Status = Say(f"echo: {line}")
        if last["role"] == "tool":
            reply = Say(f"so: {last['content']}")
        elif found := _WRITE.search(line):
            arguments = {"content": found[1], "path": found[2]}
            reply = Say(calls=[Call("write_file", json.dumps(arguments), id=f"c{len(body['messages'])}")])
        elif "take your time" in line:
            await self.may_answer.wait()
        elif "break" in line and self.is_broken:
            reply = Status(400, "this cannot be read")
        return await self._give(reply, request, body)


class Visit:
    """A browser at the console of a running daemon, and the people who write to the bot meanwhile."""

    def __init__(self, page: Page, daemon: Daemon, town: Town, model: Helper) -> None:
        self.page, self.daemon, self.town, self.model = page, daemon, town, model
        self.room = ""

    async def open(self, view: str) -> None:
        await self.page.open(f"{self.daemon.url}/console/{view}")

    async def shows(self, words: str, *, within_s: float = 300.0) -> None:
        """Wait until the page has these words, as it is or renewed by its stream."""
        with anyio.fail_after(within_s):
            while not await self.page.value(
                f"document.querySelector('main').textContent.includes({json.dumps(words)})"
            ):
                await anyio.sleep(0.1)

    async def has(self, view: str, words: str) -> None:
        """Open a page again and again until it has these words."""
        with anyio.fail_after(300):
            while True:
                await self.open(view)
                if words in (await self.page.value("document.querySelector('main').textContent") or ""):
                    return
                await anyio.sleep(0.2)

    async def click(self, label: str) -> None:
        """Click on the button whose name begins so, and wait for the next page."""
        await self.page.value("window.before = true")
        clicked = await self.page.value(
            "(() => { const one = [...document.querySelectorAll('main button')].find("
            f"each => (each.ariaLabel || each.textContent).trim().startsWith({json.dumps(label)}));"
            " if (one) one.click(); return Boolean(one); })()"
        )
        assert clicked, (label, await self.page.value("document.querySelector('main').innerText"))
        with anyio.fail_after(300):
            while await self.page.value(
                "window.before === true || document.readyState !== 'complete' || !document.querySelector('main')"
            ) in (True, None):
                await anyio.sleep(0.05)

    async def fill(self, selector: str, text: str) -> None:
        await self.page.value(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    async def alice(self, text: str) -> None:
        await run_sync(self.town.alice.send, self.room, text)

    async def alice_hears(self, words: str) -> None:
        def heard() -> bool:
            events = self.town.alice.history(self.room, limit=300)
            return any(
                words in each.content.get("body", "")
                for each in events
                if each.sender != self.town.alice.user_id
            )

        await self.until(heard)

    async def until(self, true: Callable[[], bool]) -> None:
        await run_sync(partial(self.daemon.wait_until, true, within_s=300))


async def people_are_let_in(visit: Visit) -> None:
    """An invitation and a mail of strangers: seen with the reason, let in by a click, out again by another."""
    bob, bob_mail = visit.town.bob, visit.town.bob_mail
    room = await run_sync(partial(bob.create_room, invite=[visit.town.bot.user_id], is_direct=True))
    await visit.has("waiting", bob.user_id)
    await visit.click(f"Let in {bob.user_id}")
    await visit.until(lambda: visit.town.bot.user_id in bob.members(room))
    await run_sync(bob.send, room, "hello from Bob")
    await visit.until(
        lambda: any("echo: hello from Bob" in each.content.get("body", "") for each in bob.history(room))
    )
    await visit.open("people")
    await visit.click(f"Remove {bob.user_id}")
    await visit.shows("Those who may write")
    assert bob.user_id not in await visit.page.value("document.querySelector('main').textContent")
    await run_sync(bob_mail.send, visit.town.bot_mail.address, "Thursday", "May I come on Thursday?")
    await visit.has("waiting", bob_mail.address)
    await visit.click(f"Let in {bob_mail.address}")


async def drafts_are_decided(visit: Visit) -> None:
    """The answer to Bob's mail is edited and sent, that to his next one is rejected."""
    bob_mail = visit.town.bob_mail
    await visit.has("waiting", "read and edit")
    await visit.page.open(await visit.page.value("document.querySelector('a[href*=draft]').href"))
    await visit.fill("textarea", "On Thursday at nine.")
    await visit.click("Send this text")
    await visit.until(lambda: any("On Thursday at nine." in each.as_string() for each in bob_mail.list()))
    await run_sync(bob_mail.send, visit.town.bot_mail.address, "Friday", "And on Friday?")
    await visit.has("waiting", "read and edit")
    await visit.click("Reject d")
    await visit.shows("Rejected; nothing is sent.")
    assert not any(
        "Friday?" in each.as_string() for each in bob_mail.list() if each["From"] != bob_mail.address
    )


async def calls_are_decided(visit: Visit) -> None:
    """One is approved, one changed, one rejected with a reason; the page shows each by itself."""
    workspace = visit.daemon.home / "workspace"
    await visit.open("waiting")
    await visit.page.value("window.kept = true")
    await visit.alice("write milk into list.txt")
    await visit.shows("write_file")
    await visit.shows("list.txt")
    assert await visit.page.value("window.kept")  # told by its stream, and not opened again
    await visit.click("Approve a")
    await visit.until(lambda: (workspace / "list.txt").exists())
    await visit.alice("write bread into list.txt")
    await visit.has("waiting", "Change a")
    await visit.fill("textarea[name='argument content']", "bread and jam")
    await visit.page.value("document.querySelector('details button').click()")
    await visit.until(lambda: (workspace / "list.txt").read_text() == "bread and jam")
    await visit.alice("write nothing into list.txt")
    await visit.has("waiting", "Why not")
    await visit.fill("input[name=why]", "too little")
    await visit.click("Reject a")
    await visit.alice_hears("too little")
    assert (workspace / "list.txt").read_text() == "bread and jam"


async def changes_are_undone(visit: Visit) -> None:
    await visit.open("effects")
    await visit.click("Undo list.txt")
    await visit.until(lambda: (visit.daemon.home / "workspace/list.txt").read_text() == "milk")


async def work_is_followed(visit: Visit) -> None:
    """A turn comes and goes on the page that is open."""
    await visit.open("now")
    await visit.page.value("window.kept = true")
    await visit.alice("please take your time")
    await visit.shows("asks the model")
    await picture(visit.page, "console-now.png")
    visit.model.may_answer.set()
    await visit.alice_hears("echo: please take your time")
    with anyio.fail_after(300):
        while await visit.page.value("document.querySelector('main').textContent.includes('asks the model')"):
            await anyio.sleep(0.1)
    assert await visit.page.value("window.kept")


async def what_failed_is_tried_again(visit: Visit) -> None:
    await visit.alice("break now")
    await visit.alice_hears("Sorry")
    await visit.has("messages", "Try again")
    visit.model.is_broken = False
    await visit.click("Try again")
    await visit.shows("It is tried again.")
    await visit.alice_hears("echo: break now")


async def the_rest_of_the_pages(visit: Visit) -> None:
    """A reminder, memory, settings, what was said, what it cost, the log, a check."""
    await visit.alice("!remind tomorrow 09:00 call Tom")
    await visit.has("schedule", "call Tom")
    await visit.click("Run now")
    await visit.alice_hears("call Tom")
    await visit.has("schedule", "call Tom")
    await visit.click("Pause")
    await visit.shows("paused")
    await visit.click("Remove")
    await visit.open("memory")
    for text in ("Alice likes tea.", "Alice likes coffee."):
        await visit.fill("textarea", text)
        await visit.click("Save")
    await visit.click("Take the last change back")
    assert await visit.page.value("document.querySelector('textarea').value") == "Alice likes tea."
    await visit.open("settings")
    changed = await visit.page.value("document.querySelector('textarea').value += '# looked at\\n'")
    await visit.click("Save")
    await visit.shows("Saved.")
    assert "# looked at" in changed
    assert (visit.daemon.home / "squidbot.yaml").read_text().endswith("# looked at\n")
    await visit.open("search?q=nothing+into")
    await visit.shows("write nothing into list.txt")
    await visit.page.open(await visit.page.value("document.querySelector('article a').href"))
    await visit.shows("messages, export")
    await visit.has("cost", "The dearest turns")
    await visit.open("log?level=info")
    await visit.shows("console.done")
    await visit.open("check")
    await visit.click("Check now")
    await visit.shows("finding")
    for name, view in VIEWS.items():
        if view.in_menu:
            await visit.open(name)
            assert await visit.page.value("document.querySelector('h1').textContent") == view.title


async def test_the_owner_does_everything_by_clicks(town: Town, tmp_path: Any) -> None:
    """Each is done once, at real servers, and the policy of the pages refuses nothing of them."""
    async with Helper() as model:
        settings = town.settings(
            llm=one_model("m", model.api_base),
            tools={"require_approval": ["write_file"]},
            gateway={"log": {"file": "squidbot.log"}},
            channels={
                "matrix": {"allow_from": []},
                "email": {"allow_from": [], "reply_approval": "strangers"},
            },
        )
        with Daemon(tmp_path / "home", settings) as daemon:
            with_console(daemon, api={}, **settings["channels"])
            await run_sync(daemon.up)
            async with browsing(tmp_path / "browser") as page:
                visit = Visit(page, daemon, town, model)
                await come_in(page, daemon)
                visit.room = await run_sync(town.room_of, town.alice)
                for part in (
                    people_are_let_in,
                    drafts_are_decided,
                    calls_are_decided,
                    changes_are_undone,
                    work_is_followed,
                    what_failed_is_tried_again,
                    the_rest_of_the_pages,
                ):
                    await part(visit)
                assert page.refused == []
