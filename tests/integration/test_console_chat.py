"""
The chat of the console, in a real daemon: a form without script, its answer, and what is refused.

``SQUIDBOT_SCREENSHOT=1`` renews the pictures of the manual in docs/pictures.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from anyio.to_thread import run_sync

from tests.command_line import squidbot
from tests.daemon import Daemon
from tests.doubles.openai_server import Call, FakeOpenAI, Say, Status
from tests.integration.test_console_browser import Page, browsing
from tests.openai_endpoint import CountingModel, endpoint_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200, func_only=True)]
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
BAD = "<script>alert('x')</script>"


def with_console(daemon: Daemon, **channels: object) -> None:
    config = daemon.home / "squidbot.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["gateway"]["http"]["console"] = True
    settings["channels"] = channels
    config.write_text(yaml.safe_dump(settings))


@contextmanager
def entered(daemon: Daemon) -> Iterator[httpx.Client]:
    """A browser that has come in."""
    link = json.loads(squidbot(daemon.home, "console", "--json").stdout)["url"]
    token = link.partition("token=")[2]
    with httpx.Client(base_url=daemon.url, follow_redirects=True, timeout=60, trust_env=False) as client:
        came = client.post("/console/enter", data={"token": token}, headers={"Origin": daemon.url})
        came.raise_for_status()
        yield client


def form_of(page: str) -> dict[str, str]:
    """The hidden fields of the form that sends."""
    [form] = re.findall(r'<form[^>]*action="/console/do/chat_say".*?</form>', page, re.DOTALL)
    return {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}


def said(daemon: Daemon, client: httpx.Client, fields: dict[str, str]) -> httpx.Response:
    return client.post("/console/do/chat_say", data=fields, headers={"Origin": daemon.url})


def talks(daemon: Daemon, model: CountingModel) -> None:
    with entered(daemon) as client:
        page = client.get("/console/chat")
        assert page.status_code == 200
        assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
        fields = form_of(page.text)
        answered = said(daemon, client, {**fields, "text": f"one {BAD}"})
        assert answered.status_code == 200
        assert "answer number &lt;0&gt;." in answered.text, answered.text.partition("<main")[2]
        assert "one &lt;script&gt;" in answered.text
        assert BAD not in answered.text
        # the same form once more changes nothing, a new one is a new message
        twice = said(daemon, client, {**fields, "text": f"one {BAD}"})
        assert twice.text.count("one &lt;script&gt;") == answered.text.count("one &lt;script&gt;")
        again = said(daemon, client, {**form_of(answered.text), "text": f"one {BAD}"})
        assert "answer number &lt;1&gt;." in again.text
        assert len(model.requests) == 2
        assert any("answer number <0>." in json.dumps(each) for each in model.requests[1]["messages"])
        assert said(daemon, client, {**form_of(again.text), "text": "  "}).status_code == 400
        assert said(daemon, client, {"text": "no secret"}).status_code == 403
        foreign = client.post(
            "/console/do/chat_say", data={**fields, "text": "x"}, headers={"Origin": "http://evil.example"}
        )
        assert foreign.status_code == 403
        assert len(model.requests) == 2
    with httpx.Client(base_url=daemon.url, trust_env=False) as stranger:
        assert stranger.get("/console/chat").status_code == 401


async def test_the_owner_talks_in_a_browser(tmp_path):
    """Each form is one message with one answer; words are shown as text; a form of another page is refused."""
    async with CountingModel() as model:
        with Daemon(tmp_path / "home", endpoint_settings(model.api_base)) as daemon:
            with_console(daemon, api={})
            await run_sync(daemon.up)
            await run_sync(partial(talks, daemon, model))


def shown(client: httpx.Client) -> str:
    """The conversation on the page, without marks."""
    page = client.get("/console/chat").text.partition("<main")[2].partition("<form")[0]
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def sends(daemon: Daemon, client: httpx.Client, text: str) -> str:
    """The conversation on the page after a message."""
    said(daemon, client, {**form_of(client.get("/console/chat").text), "text": text}).raise_for_status()
    return shown(client)


def asks_and_says(daemon: Daemon) -> None:
    with entered(daemon) as client:
        page = sends(daemon, client, "put milk on the list")
        assert "I need your approval to write a file" in page
        assert page.index("being answered") < page.index("I need your approval")
        page = sends(daemon, client, "what else?")
        assert "I need your approval to write a file" in page
        for count in (1, 2):  # a command twice is two commands: they change what the page showed
            page = sends(daemon, client, "!status")
            assert page.count("!status") == page.count("I have been running for") == count
        page = sends(daemon, client, f"!approve {re.findall(r'!approve (a[0-9a-f]{6})', page)[0]}")
        assert "is approved" in page
        daemon.wait_until(lambda: "Milk is on the list." in shown(client))
        page = shown(client)
        assert page.count("Milk is on the list.") == page.count("put milk on the list") == 1
        assert "being answered" not in page
        page = sends(daemon, client, "this goes wrong")
        assert page.count("this goes wrong") == 1
        assert "Sorry, I could not answer this." in page
        assert (daemon.home / "workspace" / "list.txt").read_text() == "milk"


async def test_what_the_history_has_not(tmp_path):
    """Questions, commands with their answers and apologies are on the page; each answer is there once."""
    write = Call("write_file", json.dumps({"path": "list.txt", "content": "milk"}))
    async with FakeOpenAI() as model:
        model.plan(
            Say(calls=[write]),
            Say("Bread."),
            Say("Milk is on the list."),
            *[Status(400, "no such model")] * 9,
        )
        more = {"tools": {"require_approval": ["write_file"]}}
        with Daemon(tmp_path / "home", endpoint_settings(model.api_base, **more)) as daemon:
            with_console(daemon, api={})
            await run_sync(daemon.up)
            await run_sync(partial(asks_and_says, daemon))


def test_without_the_endpoint_the_page_says_what_to_do(tmp_path):
    with Daemon(tmp_path / "home", endpoint_settings()) as daemon:
        with_console(daemon)
        daemon.up()
        with entered(daemon) as client:
            page = client.get("/console/chat").text
    assert "<code>api: {}</code> under <code>channels</code>" in html.unescape(page)
    assert "<textarea" not in page


async def test_the_demo_model_in_a_real_browser(tmp_path):
    """By keyboard and click, and the policy refuses nothing of the page; the demo model knows what it was told."""
    with Daemon(tmp_path / "home", endpoint_settings()) as daemon:
        with_console(daemon, api={})
        await run_sync(daemon.up)
        async with browsing(tmp_path / "browser") as page:
            await come_in(page, daemon)
            await types(page, daemon, "My name is Ada.", "I will remember that your name is Ada.")
            await types(page, daemon, "What is my name?", "I have this in my memory")
            assert page.refused == []


async def come_in(page: Page, daemon: Daemon) -> None:
    done = await run_sync(partial(squidbot, daemon.home, "console", "--json"))
    await page.open(json.loads(done.stdout)["url"])
    await page.value("document.querySelector('button').click()")
    await page.until("location.pathname === '/console/now'")


async def types(page: Page, daemon: Daemon, text: str, answer: str) -> None:
    """Write a message on the page and wait until it shows the answer."""
    await page.open(f"{daemon.url}/console/chat")
    await page.value(f"document.querySelector('textarea').value = {json.dumps(text)}")
    await page.value("document.querySelector('form.wide button').click()")
    await page.until(f"document.querySelector('.chat')?.textContent.includes({json.dumps(answer)})")


async def picture(page: Page, name: str) -> None:
    """Renew a picture of the manual, if that is asked for."""
    if os.environ.get("SQUIDBOT_SCREENSHOT"):
        taken = await page.ask("Page.captureScreenshot", format="png")
        (PICTURES / name).write_bytes(base64.b64decode(taken["data"]))


async def test_a_day_on_a_phone_and_at_a_desk(tmp_path):
    """The owner chats on a phone and approves at a desk; nothing is wider than the phone. Makes two pictures."""
    at_nine = {"action": "add", "kind": "remind", "text": "Call Tom", "at": "tomorrow 09:00"}
    shopping = {"path": "shopping.md", "content": "- milk\n- bread\n"}
    async with FakeOpenAI() as model:
        model.plan(
            Say(calls=[Call("schedule", json.dumps(at_nine))]),
            Say("I'll remind you tomorrow at 09:00 to call Tom."),
            Say(calls=[Call("write_file", json.dumps(shopping))]),
            Say("Milk and bread are on the list."),
        )
        more = {"tools": {"require_approval": ["write_file"]}}
        with Daemon(tmp_path / "home", endpoint_settings(model.api_base, **more)) as daemon:
            with_console(daemon, api={})
            await run_sync(daemon.up)
            async with browsing(tmp_path / "browser") as page:
                await come_in(page, daemon)
                size = {"width": 390, "height": 960, "deviceScaleFactor": 2, "mobile": True}
                await page.ask("Emulation.setDeviceMetricsOverride", **size)
                await types(page, daemon, "Remind me tomorrow at 9 to call Tom.", "I'll remind you")
                await types(page, daemon, "Put milk and bread on the shopping list.", "I need your approval")
                assert await page.value("document.documentElement.scrollWidth") <= 390
                assert await page.value("window.scrollY > 0")  # the newest words, and where one writes
                await picture(page, "chat.png")
                await page.ask("Emulation.clearDeviceMetricsOverride")
                await page.open(f"{daemon.url}/console/waiting")
                await picture(page, "console.png")
                await page.value("document.querySelector('article button.yes').click()")
                await page.until("document.querySelector('.said') !== null")
                await page.open(f"{daemon.url}/console/chat")
                await page.until("document.body.textContent.includes('Milk and bread are on the list.')")
                assert page.refused == []
