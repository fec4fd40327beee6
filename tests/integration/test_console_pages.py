"""The pages of the console that act: letting people in, searching, granting, settings. Each through real HTTP."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
from structlog.testing import capture_logs

from agent_core.messages import SessionKey
from agent_core.models import Message, ToolResult
from channels.api.token_store import ApiTokens
from gateway.routing.links import PeopleLinks
from gateway.settings import load_settings
from gateway.settings.last_good import keep_last_good
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.clock import EPOCH
from tests.command_line import squidbot
from tests.integration.test_approvals import ANN, BOB, BOBS, EVE, deciding, held, notices
from tests.integration.test_console import BAD, Browser, looking
from tests.integration.test_grants import Machine, does
from tests.integration.test_tool_approval import answers, asking, question
from tests.proactive_world import house


async def test_somebody_is_let_in_and_removed_by_clicks(tmp_path: Path) -> None:
    """From now on, in the running daemon, and what was kept is answered."""
    async with deciding(tmp_path, "none", allow_from={"matrix": ()}) as one, looking(one) as browser:
        await one.asked("!help", person=ANN)
        one.server.say(BOB, "may I come?")
        with anyio.fail_after(60):
            while BOB not in await browser.page("waiting"):
                await anyio.sleep(0.02)
        assert BOB not in await browser.page("people")
        status, _ = await browser.do("allow", address=BOB, back="people")
        assert status == 200
        await one.server.answers(1, conversation=BOBS)
        assert (await one.asked("and now?", person=BOB)).text == "echo: and now?"
        page = await browser.page("people")
        assert f"Remove {BOB}" in page
        assert f"Remove {ANN}" not in page
        await browser.do("allow", address=BOB, remove="true", back="people")
        assert BOB not in await browser.page("people")
        one.server.say(BOB, "and today?")
        with anyio.fail_after(60):
            while "and today?" not in await browser.page("messages?state=all"):
                if BOB in await browser.page("waiting"):
                    break
        assert len(one.server.seen(BOBS)) == 2


async def test_a_linked_address_is_shown_with_its_person_and_parted_by_a_click(tmp_path: Path) -> None:
    async with deciding(tmp_path, "none", allow_from={"matrix": (BOB, EVE)}) as one, looking(one) as browser:
        assert "Unlink" not in await browser.page("people")
        links = PeopleLinks(one.built.store.state, one.built.conversations.access, SystemClock())
        assert await links.show(EVE, await links.request(BOB, EVE, f"dm-{BOB}")) is not None
        assert await links.confirm(EVE) is not None
        page = await browser.page("people")
        assert f"linked to {BOB}" in page
        assert page.count("Unlink</button>") == 1
        status, after = await browser.do("person_unlink", address=EVE, back="people")
        assert (status, "of its own again" in after, "Unlink" in after) == (200, True, False)


async def test_an_address_that_is_none_is_refused_as_text(tmp_path: Path) -> None:
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        status, text = await browser.do("allow", address=BAD, back="people")
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


async def test_a_conversation_is_exported_whole_and_the_log_notes_it(tmp_path: Path) -> None:
    """Every message once, as the command writes it, as a file; nobody without a session gets one."""
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        key = SessionKey("matrix", f"dm-{ANN}")
        said = [Message(role="user", content=f"number {each} {BAD}", sender=ANN) for each in range(450)]
        await one.built.memory.append_message(str(key), *said)
        page = await browser.page(f"conversation?session={quote(str(key), safe='')}")
        (path,) = re.findall(r'href="/console/(export[^"]+)"', page)
        with capture_logs() as logs:
            async with browser.client.get(f"{browser.url}/console/{path}") as answer:
                lines = [json.loads(line) for line in (await answer.text()).splitlines()]
                assert answer.headers["Content-Disposition"].startswith("attachment")
        assert [each.get("text", each["content"]) for each in lines] == [each.content for each in said]
        assert {"view": "export", "of": {"session": str(key)}}.items() <= logs[0].items()
        await browser.page("export?session=nothing", status=400)
        browser.client.cookie_jar.clear()
        await browser.page(path, status=401)


async def test_each_version_of_a_memory_can_be_seen_and_restored(tmp_path: Path) -> None:
    """And what was changed meanwhile is not overwritten."""
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        for version, text in enumerate(("tea", "coffee", f"water {BAD}")):
            await browser.do("memory_write", text=text, version=str(version), scope="owner", back="memory")
        status, refused = await browser.do("memory_write", text="late", version="1", back="memory")
        assert (status, "is at version 3 now" in refused) == (400, True)
        page = await browser.page("memory?scope=owner&version=2")
        assert "What version 2 changed" in page
        assert "-tea\n+coffee" in page
        assert "<script>alert" not in page
        _, after = await browser.do("memory_undo", scope="owner", to="2", back="memory")
        assert text_in(after) == "coffee"
        assert "The last change" in after
        await browser.page("memory?version=77", status=400)


async def test_the_next_check_in_is_shown(tmp_path: Path) -> None:
    """And the last one, with what came of it; where none is planned the page says so."""
    async with deciding(tmp_path / "off", "none") as one, looking(one) as browser:
        assert "Check in now" not in await browser.page("schedule")
    async with house(tmp_path / "on") as home, looking(home) as browser:  # type: ignore[arg-type]
        page = await browser.page("schedule")
        assert re.search(r"<p>next \d{4}-\d\d-\d\d \d\d:\d\d", page)
        await browser.do("heartbeat_now", back="schedule")
        assert re.search(r"last \d{4}-\d\d-\d\d .*: \w+", await browser.page("schedule"))


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
        shown = "exactly this call of write_down: {&#34;what&#34;: &#34;git status&#34;}, until"
        assert f"<article>{shown}" in after
        await answers(one, f"dm-{ANN}", 1)
        assert await does(one, "git status", 2) == "so: wrote git status"
        assert "<pre>what: git status\n</pre>" in await browser.page("effects")
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


CONFIG = """\
gateway:
  http: {listen: "127.0.0.1:8811", console: true}
  log: {file: logs/squidbot.log}
tools:
  web:
    search: {provider: brave, key: hunter2hunter2}
# the end
"""


@asynccontextmanager
async def configured(root: Path) -> AsyncIterator[tuple[Browser, Path]]:
    """The console of a daemon that has started with `CONFIG`."""
    home = open_home(root)
    home.config_file.write_text(CONFIG)
    settings = load_settings(home.config_file)
    keep_last_good(settings, home.last_good)
    async with deciding(root, "none") as one, looking(one, settings=settings, home=home) as browser:
        yield browser, home.config_file


def text_in(page: str) -> str:
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


async def test_settings_are_checked_before_they_are_saved_and_restored(tmp_path: Path) -> None:
    async with configured(tmp_path) as (browser, file):
        page = await browser.page("settings")
        assert "hunter2" not in page
        version = re.search(r'name="version" value="([^"]+)"', page)
        assert version is not None
        form = {"version": version[1]}
        shown = text_in(page)
        _, answer = await browser.do(
            "settings_write", text=shown.replace("true", "maybe"), save="true", **form
        )
        assert "Nothing was saved" in answer
        assert "maybe" in text_in(answer)  # nothing that was typed is lost
        changed = shown.replace("# the end", f"# changed {BAD}")
        _, answer = await browser.do("settings_write", text=changed, save="false", **form)
        assert "not saved yet" in answer
        assert file.read_text() == CONFIG
        _, answer = await browser.do("settings_write", text=changed, save="true", **form)
        assert "Saved." in answer
        assert "<script>alert" not in answer
        assert file.read_text() == CONFIG.replace("# the end", f"# changed {BAD}")
        status, answer = await browser.do("settings_write", text=changed, save="true", **form)
        assert (status, "was changed meanwhile" in answer) == (400, True)
        _, answer = await browser.do("settings_restore", back="settings")
        assert "is back" in answer
        assert file.read_text() == CONFIG


async def test_a_masked_value_stays_or_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """No mask is ever saved in the place of a secret, and no secret moves to another line."""
    async with configured(tmp_path) as (browser, file):
        page = await browser.page("settings")
        shown = text_in(page)
        version = re.search(r'name="version" value="([^"]+)"', page)
        assert version is not None
        (masked,) = [line for line in shown.splitlines() if "***" in line]
        for bad in (masked.replace("brave", "evil"), masked.partition("  #")[0], f"{masked[:-1]}5"):
            text = shown.replace(masked, bad)
            status, told = await browser.do("settings_write", text=text, version=version[1], save="true")
            assert (status, "can only stay as it is" in told) == (400, True)
            assert file.read_text() == CONFIG
        text = shown.replace(masked, '    search: {provider: brave, key: "${BRAVE_KEY}"}')
        _, told = await browser.do("settings_write", text=text, version=version[1], save="true")
        assert "BRAVE_KEY" in told
        assert file.read_text() == CONFIG


async def test_the_log_is_shown_by_level(tmp_path: Path) -> None:
    async with configured(tmp_path) as (browser, file):
        log = file.parent / "logs" / "squidbot.log"
        log.parent.mkdir(exist_ok=True)
        rows = [
            {"time": "2026-01-01T00:00:00Z", "level": level, "event": f"e.{level}", "what": BAD}
            for level in ("info", "warning", "error")
        ]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows) + "cut of")
        page = await browser.page("log?level=warning")
        assert [name in page for name in ("e.info", "e.warning", "e.error")] == [False, True, True]
        assert page.index("e.error") < page.index("e.warning")
        assert "<script>alert" not in page
        await browser.page("log?level=nothing", status=400)


async def test_a_check_runs_on_demand_and_never_twice_at_once(tmp_path: Path) -> None:
    """What `squidbot check` of this home finds; the program is another process, as in a shell."""
    async with configured(tmp_path) as (browser, file):
        before = await browser.page("check")
        assert "finding" not in before
        file.write_text(CONFIG.replace("true", "maybe"))
        status, page = await browser.do("check_run", back="check")
        assert (status, "Problems" in page, "console" in page) == (200, True, True)


class Slow(Machine):
    """Works until it is told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.end = anyio.Event()

    async def execute(self, **arguments: Any) -> ToolResult:
        await self.end.wait()
        return await super().execute(**arguments)


async def test_a_turn_at_work_is_shown_with_its_step_and_the_day_as_charts(tmp_path: Path) -> None:
    tool = Slow()
    async with asking(tmp_path, tool) as one, looking(one) as browser:
        assert "uses write_down" not in await browser.page("now")
        one.server.say(ANN, "write a book")
        _, name = await question(one, f"dm-{ANN}")
        await browser.do("calls_decide", call=name, yes="true")
        with anyio.fail_after(60):
            while "uses write_down" not in (page := await browser.page("now")):
                await anyio.sleep(0.02)
        assert page.count("<svg") == 4
        tool.end.set()
        await answers(one, f"dm-{ANN}", 1)
        with anyio.fail_after(60):
            while "uses write_down" in await browser.page("now"):
                await anyio.sleep(0.02)


async def test_the_same_at_the_shell_without_a_daemon(tmp_path: Path) -> None:
    """Who may write, and the search; nothing that was said can steer the terminal."""

    async def command(*arguments: str) -> str:
        done = await anyio.to_thread.run_sync(partial(squidbot, tmp_path, *arguments))
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        await one.asked("the locker code is 4711\x1b[2J", person=ANN)
        with anyio.fail_after(60):
            while "4711" not in await browser.page("search?q=locker"):
                await anyio.sleep(0.02)
    found = await command("sessions", "search", "locker code")
    assert "4711" in found
    assert "\x1b" not in found
    assert await command("sessions", "search", "nowhere") == "nothing was found\n"
    assert await command("person", "list") == "nobody\n"


class KeptState:
    """A state folder in memory."""

    def __init__(self) -> None:
        self.content: bytes | None = None

    def read(self, _name: str) -> bytes | None:
        return self.content

    def write(self, _name: str, content: bytes) -> None:
        self.content = content


async def test_a_token_is_listed_and_revoked_by_a_click(tmp_path: Path, monkeypatch: Any) -> None:
    """Its text is in no page; where there is no endpoint, nothing of programs is shown."""
    tokens = ApiTokens(KeptState())  # type: ignore[arg-type]
    text = tokens.add(BAD, ANN, EPOCH)

    async def with_tokens(_context: Any, use: Any) -> Any:
        return use(tokens)

    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        assert "Programs" not in await browser.page("people")
        monkeypatch.setattr("gateway.operations.token_operations._with_tokens", with_tokens)
        page = await browser.page("people")
        assert "Programs" in page
        assert BAD not in page
        assert "&lt;script&gt;" in page
        assert text not in page
        status, after = await browser.do("tokens_revoke", name=BAD, back="people")
        assert (status, "Revoked." in after) == (200, True)
    assert tokens.rows() == []


async def test_what_waits_is_counted_at_a_glance(tmp_path: Path) -> None:
    """A draft for somebody is one thing that waits; decided, it is none."""
    async with deciding(tmp_path / "home", "strangers") as one, looking(one) as browser:
        await one.asked("!help", person=ANN)
        assert "<b>0</b> waiting for you" in await browser.page("now")
        one.server.say(BOB, "may I come on Thursday?")
        await notices(one)
        assert "<b>1</b> waiting for you" in await browser.page("now")
        (draft,) = await held(one)
        await browser.do("drafts_reject", id=draft)
        assert "<b>0</b> waiting for you" in await browser.page("now")
