"""
The console in a real browser: the link, every page, and a draft that is edited and sent by clicks.

Without chromium the test is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import pytest

from gateway.operations.http.console.console_views import VIEWS
from gateway.system.home import Home
from tests.integration.test_approvals import ANN, BOB, BOBS, deciding, held, notices
from tests.integration.test_console import WITH_LOG, looking
from tests.integration.test_tool_approval import Writer, asking, question


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
        looking(one, settings=WITH_LOG, home=Home(tmp_path / "home")) as console,
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
        await page.value("window.kept = true")
        one.server.say(BOB, "or on Friday?")
        await page.until(
            "document.body.textContent.includes('or on Friday') || document.querySelectorAll('article').length > 1"
        )
        assert await page.value("window.kept")  # renewed by its stream, and not opened again
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


_AUDIT = """(() => {
  const found = [];
  const say = (what, one) => found.push(what + ': ' + one.outerHTML.slice(0, 120));
  if (document.documentElement.lang !== 'en') found.push('no language');
  if (document.querySelectorAll('main').length !== 1) found.push('not one main');
  let level = 0;
  for (const one of document.querySelectorAll('h1,h2,h3,h4')) {
    const own = Number(one.tagName[1]);
    if (own > level + 1) say('a level of headings is left out', one);
    if (!one.textContent.trim()) say('an empty heading', one);
    level = own;
  }
  for (const one of document.querySelectorAll('input:not([type=hidden]),textarea,select'))
    if (!one.labels.length && !one.ariaLabel) say('no label', one);
  const names = new Map();
  for (const one of document.querySelectorAll('button,a[href]')) {
    const name = (one.ariaLabel || one.textContent).trim();
    if (!name) say('no name', one);
    if (/^[\\d.,]+( USD)?$/.test(name)) say('a name that is only a number', one);
    if (one.ariaLabel && !one.ariaLabel.includes(one.textContent.trim())) say('another name than is seen', one);
    if (one.tagName === 'BUTTON' && names.has(name)) say('a name used twice', one);
    if (one.tagName === 'BUTTON') names.set(name, one);
  }
  const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
  if (new Set(ids).size !== ids.length) found.push('an id used twice');
  for (const one of document.querySelectorAll('svg')) if (!one.ariaLabel) say('no text for a chart', one);
  for (const one of document.querySelectorAll('table')) if (!one.querySelector('th')) say('no head', one);
  for (const one of document.querySelectorAll('th')) if (!one.textContent.trim()) say('an empty head', one);
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = one => {
    for (; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = walk.nextNode());) {
    const one = text.parentElement;
    if (!text.data.trim() || !one.checkVisibility() || ['SCRIPT', 'STYLE'].includes(one.tagName)) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(rgb(one.closest('svg') ? style.fill : style.color)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) say('contrast of ' + ratio.toFixed(1), one);
  }
  return found;
})()"""
"""What a screen reader and weak eyes need, of WCAG 2.2 A and AA as far as a page alone can say it."""

_FOCUSED = """(() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  return {name: one.ariaLabel || (one.labels && one.labels.length ? one.labels[0].firstChild.textContent.trim()
    : one.textContent.trim()) || one.name, seen: box.width > 0 && box.right > 0
    && (style.outlineStyle !== 'none' || one.matches('.skip'))};
})()"""


@asynccontextmanager
async def at_the_console(tmp_path: Path) -> AsyncIterator[tuple[Page, str, dict[str, str]]]:
    """A browser that has come in, and of each page an address at which it has something to show."""
    home = tmp_path / "home"
    async with (
        deciding(home, "strangers") as one,
        looking(one, settings=WITH_LOG, home=Home(home)) as console,
        browsing(tmp_path / "browser") as page,
    ):
        (home / "squidbot.log").write_text(
            '{"time": "2026-01-01T00:00:00Z", "level": "info", "event": "x"}\n'
        )
        await one.asked("remember the locker code", person=ANN)
        one.server.say(BOB, "may I come on Thursday?")
        await notices(one)
        (draft,) = await held(one)
        rows = await one.built.store.inbox.rows(limit=1)
        session = quote(str(rows[0].message.session), safe="")
        more = {
            "message": f"?id={rows[0].id}",
            "draft": f"?id={draft}",
            "conversation": f"?session={session}",
            "search": "?q=locker",
            "messages": "?state=all",
        }
        await page.open(console.logins.new_link())
        await page.value("document.querySelector('button').click()")
        await page.until("location.pathname === '/console/now' && document.querySelector('nav') !== null")
        yield page, console.url, {name: f"{console.url}/console/{name}{more.get(name, '')}" for name in VIEWS}


async def test_everybody_can_read_every_page(tmp_path: Path) -> None:
    """Labels, headings, names and contrast, in light and in dark; nothing is wider than a phone."""
    async with at_the_console(tmp_path) as (page, _, addresses):
        found: dict[str, Any] = {}
        for scheme in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.ask("Emulation.setEmulatedMedia", features=media)
            for name, address in addresses.items():
                await page.open(address)
                if problems := await page.value(_AUDIT):
                    found[f"{name} in {scheme}"] = problems
        phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
        await page.ask("Emulation.setDeviceMetricsOverride", **phone)
        for name, address in addresses.items():
            await page.open(address)
            if (wide := await page.value("document.documentElement.scrollWidth")) > 360:
                found[f"{name} on a phone"] = wide
            place = await page.value(
                "document.querySelector('nav [aria-current]')?.getBoundingClientRect().right"
            )
            if place is not None and place > 360:
                found[f"{name} in the menu of a phone"] = place
        assert found == {}


AXE = Path(__file__).resolve().parents[2] / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


async def axe_problems(page: Page) -> list[str]:
    """What axe-core finds that is serious or worse, by its rules for WCAG 2.2 A and AA and its best practices."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make axe")
    await page.ask("Runtime.evaluate", expression=AXE.read_text())
    script = (
        "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations"
        ".filter(one => ['serious', 'critical'].includes(one.impact))"
        ".map(one => one.id + ': ' + one.nodes.map(node => node.html.slice(0, 120)).join(' | ')))"
    )
    told = await page.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in told, told
    return list(told["result"]["value"])


async def test_axe_finds_nothing_serious_on_any_page(tmp_path: Path) -> None:
    async with at_the_console(tmp_path) as (page, url, addresses):
        found: dict[str, list[str]] = {}
        more = {"the door": f"{url}/console/enter?token=x", "a problem": f"{url}/console/message?id=99999"}
        for scheme in ("light", "dark"):
            await page.ask(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            for name, address in {**addresses, **more}.items():
                await page.open(address)
                if problems := await axe_problems(page):
                    found[f"{name} in {scheme}"] = problems
        assert found == {}


async def test_axe_notices_what_is_wrong(tmp_path: Path) -> None:
    """The control."""
    async with browsing(tmp_path / "browser") as page:
        await page.open("about:blank")
        await page.value(
            "document.write('<main><input><button></button><p style=\"color:#999\">some words</p></main>')"
        )
        found = {each.partition(":")[0] for each in await axe_problems(page)}
    assert found >= {"label", "button-name", "color-contrast", "html-has-lang"}


async def press(page: Page, key: str, code: int, text: str = "") -> None:
    """Press a key as a person does."""
    what = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    await page.ask("Input.dispatchKeyEvent", type="keyDown", **what, **({"text": text} if text else {}))
    await page.ask("Input.dispatchKeyEvent", type="keyUp", **what)


async def test_a_call_is_changed_and_approved_by_keyboard_alone(tmp_path: Path) -> None:
    """Tab, Enter and letters alone; and a page with a waiting call has nothing serious either."""
    tool = Writer()
    async with (
        asking(tmp_path / "home", tool) as one,
        looking(one) as console,
        browsing(tmp_path / "browser") as page,
    ):
        one.server.say(BOB, "write it")
        _, name = await question(one, BOBS)
        await page.open(console.logins.new_link())
        await press(page, "Tab", 9)
        await press(page, "Tab", 9)
        await press(page, "Enter", 13, "\r")
        await page.until("location.pathname === '/console/now' && document.querySelector('nav') !== null")
        await page.open(f"{console.url}/console/waiting")

        async def focus(wanted: str) -> None:
            for _ in range(40):
                await press(page, "Tab", 9)
                found = await page.value(_FOCUSED)
                if found is not None and found["name"] == wanted:
                    return
            raise AssertionError(f"{wanted} is not reached")

        await focus(f"Change {name}")
        await press(page, "Enter", 13, "\r")
        await focus("what")
        assert await page.value("document.activeElement.value") == "it"
        await page.ask("Input.insertText", text=" and that")
        if AXE.exists():
            assert await axe_problems(page) == []
        assert await page.value(_AUDIT) == []
        await focus(f"Approve {name} as changed")
        await press(page, "Enter", 13, "\r")
        await page.until("document.querySelector('.said') !== null")
        with anyio.fail_after(60):
            while not tool.written:
                await anyio.sleep(0.02)
        await page.value("document.querySelector('main').append(document.createElement('hr'))")
        await page.value("document.dispatchEvent(new Event('visibilitychange'))")
        await page.until("document.querySelector('hr') === null")
        assert await page.value("document.querySelector('.said') !== null")  # also once the page was renewed
        assert page.refused == []
    assert tool.written[0] in ("it and that", " and thatit")


async def test_every_page_can_be_used_by_keyboard_alone(tmp_path: Path) -> None:
    """Tab reaches everything, in the order of the page, and shows where it is."""
    async with at_the_console(tmp_path) as (page, _, addresses):
        for name, address in addresses.items():
            await page.open(address)
            count = await page.value(
                "document.querySelectorAll('a[href],button,input:not([type=hidden]),textarea,select,[tabindex]').length"
            )
            reached = []
            for _ in range(count):
                key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
                await page.ask("Input.dispatchKeyEvent", type="keyDown", **key)
                await page.ask("Input.dispatchKeyEvent", type="keyUp", **key)
                reached.append(await page.value(_FOCUSED))
            assert None not in reached, name
            assert [each["name"] for each in reached if not each["seen"]] == [], name
            assert reached[0]["name"] == "To the content"


async def test_what_is_hard_to_read_is_noticed(tmp_path: Path) -> None:
    """The control: a page with one defect of each kind."""
    async with browsing(tmp_path / "browser") as page:
        await page.open("about:blank")
        await page.value(
            'document.write(\'<main><h1>x</h1><h3>y</h3><input><button></button><p style="color:#999">z</p>'
            "<table><tr><td>1</td></tr></table><table><tr><th></th></tr></table><svg></svg><i id=a></i><i id=a></i>"
            "<a href=x>0</a></main>')"
        )
        found = {each.partition(":")[0] for each in await page.value(_AUDIT)}
    assert found >= {
        *("no language", "a level of headings is left out", "no label", "no name", "contrast of 2.8"),
        *(
            "no head",
            "no text for a chart",
            "an id used twice",
            "an empty head",
            "a name that is only a number",
        ),
    }
