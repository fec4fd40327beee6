"""
The console in a real browser: the link, every page, and a draft that is edited and sent by clicks.

Without chromium the test is skipped. ``SQUIDBOT_SCREENSHOT=1`` renews docs/pictures/console.png, the picture of the
manual.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from gateway.operations.http.console.views import VIEWS
from tests.integration.test_approvals import ANN, BOB, BOBS, deciding, held, notices
from tests.integration.test_console import looking

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "console.png"


class Page:
    """A page of a browser, by its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.refused: list[str] = []
        """What the content security policy refused."""

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            told = await self._socket.receive_json(timeout=60)
            if told.get("method") == "Log.entryAdded":
                self.refused.append(str(told["params"]["entry"]["text"]))
            if told.get("id") == self._number:
                assert "error" not in told, told
                return dict(told["result"])

    async def value(self, script: str) -> Any:
        """The value of an expression; None while a page is changing."""
        result = await self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        return result["result"].get("value")

    async def until(self, script: str) -> None:
        with anyio.fail_after(60):
            while not await self.value(script):
                await anyio.sleep(0.05)

    async def open(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """A page of a headless chromium of its own."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        "--window-size=1100,900",
    ]
    with subprocess.Popen(
        [program, *options, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)},
    ) as process:
        try:
            port = folder / "DevToolsActivePort"
            with anyio.fail_after(60):
                while not port.exists() or not port.read_text().strip():
                    await anyio.sleep(0.05)
            url = f"http://127.0.0.1:{port.read_text().split()[0]}/json/new"
            async with aiohttp.ClientSession() as client:
                async with client.put(url) as made:
                    target = await made.json()
                async with client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for each in ("Page.enable", "Log.enable", "Runtime.enable"):
                        await page.ask(each)
                    yield page
        finally:
            process.kill()


async def test_a_person_decides_in_a_browser(tmp_path: Path) -> None:
    async with (
        deciding(tmp_path / "home", "strangers") as one,
        looking(one) as console,
        browsing(tmp_path / "browser") as page,
    ):
        await one.asked("!help", person=ANN)
        one.server.say(BOB, "may I come on Thursday?")
        await notices(one)
        (draft,) = await held(one)

        await page.open(console.logins.new_link())
        await page.value("document.querySelector('button').click()")
        await page.until("location.pathname === '/console/now' && document.querySelector('nav') !== null")
        for name, view in VIEWS.items():
            if view.in_menu:
                await page.open(f"{console.url}/console/{name}")
                assert await page.value("document.querySelector('h1').textContent") == view.title
                assert (
                    await page.value(
                        "document.querySelectorAll('main button:not([aria-label]):empty').length"
                    )
                    == 0
                )
        await page.open(f"{console.url}/console/waiting")
        if os.environ.get("SQUIDBOT_SCREENSHOT"):
            PICTURE.parent.mkdir(exist_ok=True)
            shown = await page.ask("Page.captureScreenshot", format="png")
            PICTURE.write_bytes(base64.b64decode(shown["data"]))
        await page.open(f"{console.url}/console/draft?id={draft}")
        await page.value("document.querySelector('textarea').value = 'Yes, on Thursday.'")
        await page.value("document.querySelector('form.wide button').click()")
        await page.until("document.querySelector('.said') !== null")
        (answer,) = await one.server.answers(1, conversation=BOBS)
        assert answer.text == "Yes, on Thursday."
        assert page.refused == []


async def test_what_the_policy_refuses_is_noticed(tmp_path: Path) -> None:
    """The control: a script that somebody else put into the page does not run, and the browser says so."""
    async with (
        deciding(tmp_path / "home", "none") as one,
        looking(one) as console,
        browsing(tmp_path / "browser") as page,
    ):
        await page.open(console.logins.new_link())
        await page.value(
            "(() => { const one = document.createElement('script'); one.text = 'window.ran = 1';"
            " document.body.append(one); })()"
        )
        assert await page.value("window.ran") is None
        assert any("Content Security Policy" in each for each in page.refused)
