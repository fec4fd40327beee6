"""The console through a real gateway and real HTTP: who is let in, what is refused, and that a click decides once."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from yarl import URL

from agent_core.messages import InboundMessage, SessionKey
from gateway.app.daemon import make_operations
from gateway.operations.http import console as console_package
from gateway.operations.http.console.console_server import Console
from gateway.operations.http.console.console_views import ACTIONS, VIEWS
from gateway.operations.http.console.streams import MAX_STREAMS, ChangeStreams
from gateway.operations.http.health import Health, serve
from gateway.operations.http.samples import DayHistory
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_registry import all_operations
from gateway.settings import Settings
from gateway.store.states import OutboxState
from gateway.system.clock import SystemClock
from gateway.system.console_logins import LINK_S, SESSION_S, ConsoleLogins
from gateway.system.home import Home
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackServer
from tests.inbound import inbound
from tests.integration.gateway_world import Scenario
from tests.integration.test_approvals import ANN, BOB, BOBS, SETTINGS, deciding, held, notices
from tests.integration.test_questions_together import three_tools
from tests.integration.test_tool_approval import Wishful, Writer, answers, asking, question

WITH_LOG = Settings.model_validate({**SETTINGS, "gateway": {"log": {"file": "squidbot.log"}}})
BAD = "<script>alert('x')</script>\"'&"


@dataclass
class Browser:
    """A browser and the console that it looks at."""

    client: aiohttp.ClientSession
    url: str
    logins: ConsoleLogins
    streams: ChangeStreams
    csrf: str = ""
    elsewhere: str = ""
    """Why another process is the daemon."""

    async def enter(self) -> None:
        link = self.logins.new_link()
        async with self.client.get(link) as door:
            assert door.status == 200
            token = URL(link).query["token"]
            assert token in await door.text()
        async with self.client.post(
            f"{self.url}/console/enter", data={"token": token}, headers={"Origin": self.url}
        ) as entered:
            assert entered.status == 200, await entered.text()
        found = re.search(r'name="csrf" value="([^"]+)"', await self.page("now"))
        assert found is not None
        self.csrf = found[1]

    async def page(self, path: str, *, status: int = 200, **more: Any) -> str:
        async with self.client.get(f"{self.url}/console/{path}", **more) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def do(
        self, operation: str, *, headers: dict[str, str] | None = None, **form: str
    ) -> tuple[int, str]:
        data = {"csrf": self.csrf, **form}
        origin = {"Origin": self.url} if headers is None else headers
        async with self.client.post(
            f"{self.url}/console/do/{operation}", data=data, headers=origin
        ) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def looking(
    one: Scenario, *, clock: Any = None, settings: Settings | None = None, home: Home | None = None
) -> AsyncIterator[Browser]:
    """A browser that has come in to the console of a gateway."""
    logins = ConsoleLogins(clock or SystemClock(), "http://127.0.0.1:0")
    operations = make_operations(one.built, settings or Settings.model_validate(SETTINGS), home)
    health = Health(list, operations.status)

    streams = ChangeStreams(one.built.wakeups.changes())
    day = DayHistory(one.built.store.maintenance.stats)

    async def standby_notice() -> str:
        return browser.elsewhere

    app = health.app(
        host="127.0.0.1", more=Console(operations, logins, standby_notice, day, streams).routes()
    )
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        serve(app, host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession(cookie_jar=jar) as client,
    ):
        logins.address = f"http://127.0.0.1:{port}"
        browser = Browser(client, logins.address, logins, streams)
        await browser.enter()
        try:
            yield browser
        finally:
            streams.end()


async def test_a_draft_is_edited_and_sent_by_a_click_and_only_once(tmp_path: Path) -> None:
    async with deciding(tmp_path, "strangers") as one, looking(one) as browser:
        await one.asked("!help", person=ANN)
        one.server.say(BOB, "may I come?")
        await notices(one)
        (draft,) = await held(one)
        page = await browser.page("waiting")
        assert f"d{draft}" in page
        assert (
            "echo: may I come?" not in page
        )  # the words of an answer to somebody else, until they are asked for
        assert "echo: may I come?" in await browser.page(f"draft?id={draft}")
        form = {"id": str(draft), "back": "waiting"}
        status, after = await browser.do(
            "drafts_approve", **form, text="Yes,\r\ndo."
        )  # as browsers send lines
        assert (status, "Approved" in after) == (200, True)
        (answer,) = await one.server.answers(1, conversation=BOBS)
        assert answer.text == "Yes,\ndo."
        for late in ("drafts_approve", "drafts_reject"):
            _, after = await browser.do(late, **form)
            assert "Nothing was changed" in after
        assert [each.text for each in one.server.seen(BOBS)] == ["Yes,\ndo."]


def stranger_with_script() -> InboundMessage:
    """A mail whose name, subject, file and address would be script."""
    return inbound(
        SessionKey("matrix", f"dm-{BAD}"),
        f"{BAD}@hs.test",
        BAD,
        f"<{BAD}>",
        received_at=SystemClock().now(),
        context={"subject": BAD, "doubt": BAD, "route": {"display_name": BAD}},
    )


async def test_every_page_opens_and_every_button_is_an_operation(tmp_path: Path) -> None:
    """With words of strangers that would be script: in no page do they stand as they are."""
    async with (
        deciding(tmp_path, "strangers") as one,
        looking(one, settings=WITH_LOG, home=Home(tmp_path)) as browser,
    ):
        one.built.channels["matrix"].room_name = lambda _place: f"a room {BAD}"  # type: ignore[attr-defined]
        await one.asked(f"hello {BAD}", person=ANN)
        one.server.say(BOB, f"let me in {BAD}")
        await notices(one)
        await one.hand_over(stranger_with_script())
        (draft,) = await held(one)
        operations = make_operations(one.built, Settings())
        with anyio.fail_after(60):
            while not (sessions := (await operations.call("sessions_list", {}))["sessions"]):
                await anyio.sleep(0.02)
        session = sessions[0]["session"]
        rows = await one.built.store.inbox.rows(limit=5)
        details = {
            "message": f"?id={max(row.id for row in rows)}",
            "search": f"?q={URL.build(path=BAD).raw_path}&place={URL.build(path=BAD).raw_path}",
            "draft": f"?id={draft}",
            "conversation": f"?session={URL.build(path=session).raw_path}",
            "messages": "?state=all",
        }
        pages = [await browser.page(name + details.get(name, "")) for name in VIEWS]
    assert sum("&lt;script&gt;" in page for page in pages) > 5
    assert sum("a room &lt;script" in page for page in pages) > 3
    assert not any("<script>alert" in page for page in pages)
    assert set(ACTIONS) <= set(all_operations())


def test_every_value_of_a_page_is_text_but_what_is_made_here() -> None:
    """Whatever field a stranger, a file, a model or an error fills: nothing else is ever taken for markup."""
    folder = Path(console_package.__file__).parent / "templates"
    texts = [page.read_text() for page in folder.glob("*.html")]
    assert sorted(
        one.strip() for text in texts for one in re.findall(r"\{\{([^}]*)\| *safe *\}\}", text)
    ) == ["script", "style", "text | markdown"]
    assert not any("autoescape" in text for text in texts)
    assert sum(text.count("safe") for text in texts) == 3


@pytest.mark.parametrize(
    ("headers", "form", "status"),
    [
        ({"Origin": "https://evil.example"}, {}, 403),
        ({}, {}, 403),
        (None, {"csrf": "guessed"}, 403),
        (None, {"csrf": ""}, 403),
        (None, {}, 200),
    ],
    ids=["other origin", "no origin", "wrong secret", "no secret", "control"],
)
async def test_a_form_of_another_page_does_nothing(
    tmp_path: Path, headers: dict[str, str] | None, form: dict[str, str], status: int
) -> None:
    async with deciding(tmp_path, "strangers") as one, looking(one) as browser:
        await one.asked("!help", person=ANN)
        one.server.say(BOB, "may I come?")
        await notices(one)
        (draft,) = await held(one)
        found, _ = await browser.do("drafts_reject", headers=headers, id=str(draft), **form)
        rows = await one.built.store.outbox.rows(states=[OutboxState.HELD])
    assert found == status
    assert len(rows) == (0 if status == 200 else 1)


async def test_no_action_at_all_is_done_for_another_page(tmp_path: Path, monkeypatch: Any) -> None:
    """Every operation that a form may call; the control is that the same form of the console gets to it."""
    called: list[str] = []

    async def call(_self: OperationContext, name: str, _arguments: Any) -> dict[str, Any]:
        called.append(name)
        return {}

    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        monkeypatch.setattr(OperationContext, "call", call)
        for name in ACTIONS:
            for attack in (
                {"headers": {"Origin": "https://evil.example"}},
                {"headers": {"Origin": "null"}},
                {"headers": {"Origin": browser.url, "Host": "rebound.example"}},
                {"csrf": "guessed"},
                {"csrf": ""},
            ):
                status, _ = await browser.do(name, **attack)  # type: ignore[arg-type]
                assert (status, called) == (403, []), (name, attack)
            await browser.page(f"do/{name}", status=405)
        await browser.do("people_list")  # an operation that no form calls
        assert called == []
        await browser.do("grants_revoke", grant="g1")
        assert called[0] == "grants_revoke"


async def test_nobody_comes_in_without_a_link_that_counts(tmp_path: Path) -> None:
    """Other names for this machine, used links, old links, old sessions, and after signing out."""
    clock = ManualClock()
    async with deciding(tmp_path, "none") as one, looking(one, clock=clock) as browser:
        await browser.page("now", status=403, headers={"Host": "rebound.example"})
        link = browser.logins.new_link()
        token = URL(link).query["token"]
        for _ in range(2):  # a program that previews links uses nothing up
            async with browser.client.get(link) as door:
                assert door.status == 200
        post = {"url": f"{browser.url}/console/enter", "data": {"token": token}}
        async with browser.client.post(**post, headers={"Origin": "https://evil.example"}) as foreign:
            assert foreign.status == 403
        async with browser.client.post(**post, headers={"Origin": browser.url}) as first:
            assert first.status == 200
        async with browser.client.post(**post, headers={"Origin": browser.url}) as second:
            assert second.status == 403
        late = browser.logins.new_link()
        clock.advance(LINK_S + 1)
        async with browser.client.get(late) as door:
            assert door.status == 403
        await browser.page("now")
        clock.advance(SESSION_S)
        await browser.page("now", status=401)
        await browser.enter()
        async with browser.client.post(
            f"{browser.url}/console/leave", data={"csrf": browser.csrf}, headers={"Origin": browser.url}
        ) as left:
            assert left.status == 200
        await browser.page("now", status=401)


async def test_a_cookie_that_was_set_before_is_not_taken_over(tmp_path: Path) -> None:
    """Fixation: the session's secret is new, whatever the browser had."""
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        browser.client.cookie_jar.clear()
        planted = {"squidbot_console": "planted"}
        browser.client.cookie_jar.update_cookies(planted, URL(f"{browser.url}/console"))
        await browser.page("now", status=401)
        await browser.enter()
        cookies = browser.client.cookie_jar.filter_cookies(URL(f"{browser.url}/console"))
        assert cookies["squidbot_console"].value != "planted"


async def test_a_tool_call_is_shown_whole_and_run_once(tmp_path: Path) -> None:
    """With all calls that the answer decides, and nothing in them that a browser would hide."""
    tool = Writer()
    hidden = "one\u202etwo"
    async with asking(tmp_path, tool, model=Wishful()) as one, looking(one) as browser:
        await one.asked(f"write {hidden}", person=ANN)
        ((name, page),) = [
            (row["name"], await browser.page("waiting"))
            for row in (await make_operations(one.built, Settings()).call("calls_list", {}))["rows"]
        ]
        assert "write_down" in page
        assert "two" in page
        assert "\u202e" not in page
        assert "calls_change" not in page  # what a person cannot see cannot be edited
        status, after = await browser.do("calls_decide", call=name, yes="true", back="waiting")
        assert (status, "Decided" in after) == (200, True)
        with anyio.fail_after(60):
            while not tool.written:
                await anyio.sleep(0.02)
        await browser.do("calls_decide", call=name, yes="true", back="waiting")
    assert tool.written == [hidden]


async def test_calls_that_are_asked_about_together_are_all_shown(tmp_path: Path) -> None:
    """A yes is a yes to all of them."""
    server = LoopbackServer()
    async with three_tools(tmp_path, server) as (one, tools), looking(one) as browser:
        server.say(ANN, "go")
        _, name = await question(one, f"dm-{ANN}")
        page = await browser.page("waiting")
        assert [page.count(each) for each in ("write_down-1", "note-1", "run_it-1")] == [1, 1, 1]
        await browser.do("calls_decide", call=name, yes="false")
        await answers(one, f"dm-{ANN}", 1)
    assert [each.written for each in tools if each.name != "look"] == [[], [], []]


async def test_where_another_process_is_the_daemon_nothing_is_decided(tmp_path: Path) -> None:
    async with deciding(tmp_path, "strangers") as one, looking(one) as browser:
        browser.elsewhere = "the daemon of this home runs on another machine"
        assert "on another machine" in await browser.page("waiting", status=400)
        status, text = await browser.do("inbox_drop", id="1")
    assert (status, "on another machine" in text) == (400, True)


_ACT = re.compile(r'act\(session, "(\w+)", "[^"]+", "(\w+)"(?:, \{([^}]*)\})?')
_FORM = re.compile(r'form\(session, "(\w+)", "(\w+)"(?:, \{([^}]*)\})?\) %\}(.*?)\{% endcall', re.DOTALL)


def forms_in(text: str) -> list[tuple[str, str, set[str]]]:
    """Each form of a template: the operation, where it leads back to, and the names of its fields."""
    found = [(name, back, set(re.findall(r'"(\w+)":', fields))) for name, back, fields in _ACT.findall(text)]
    for name, back, fields, inner in _FORM.findall(text):
        found.append((name, back, set(re.findall(r'"(\w+)":', fields) + re.findall(r' name="(\w+)"', inner))))
    return found


def test_each_form_fits_its_operation() -> None:
    """The names of its fields are parameters; all actions have a form, and each leads back to a page."""
    folder = Path(console_package.__file__).parent / "templates"
    forms = [form for page in folder.glob("*.html") for form in forms_in(page.read_text())]
    assert {name for name, _, _ in forms} == set(ACTIONS)
    assert {back for _, back, _ in forms} <= set(VIEWS)
    for name, _, fields in forms:
        assert fields <= set(inspect.signature(all_operations()[name].run).parameters), name


async def test_a_refusal_is_told_in_words(tmp_path: Path) -> None:
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        status, text = await browser.do("inbox_retry", id="99999")
        assert (status, "there is no message 99999" in text) == (400, True)
        status, _ = await browser.do("send", to="owner", text="x")  # an operation, but no button
        assert status == 404
        await browser.page("nothing", status=404)
        assert "signed in" in await browser.page("enter?token=wrong", status=403)


async def test_the_policy_allows_nothing_but_its_own(tmp_path: Path) -> None:
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        async with browser.client.get(f"{browser.url}/console/now") as answer:
            policy = answer.headers["Content-Security-Policy"]
            cookie = browser.client.cookie_jar.filter_cookies(URL(f"{browser.url}/console"))[
                "squidbot_console"
            ]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert len(cookie.value) > 40


async def test_a_change_is_told_at_once_and_only_to_a_session(tmp_path: Path) -> None:
    clock = ManualClock()
    async with deciding(tmp_path, "strangers") as one, looking(one, clock=clock) as browser:
        url = f"{browser.url}/console/changes"
        async with browser.client.get(url) as stream:
            assert stream.content_type == "text/event-stream"
            one.server.say(BOB, "may I come?")
            with anyio.fail_after(120):  # a change, not the quiet time
                assert await stream.content.readuntil(b"\n\n") == b"data: \n\n"
            clock.advance(SESSION_S)
            one.server.say(BOB, "or tomorrow?")
            with anyio.fail_after(60):
                await stream.content.read()  # ends with its session
        await browser.page("changes", status=401)
        await browser.page("changes", status=403, headers={"Host": "rebound.example"})


async def test_a_page_that_stays_open_and_pages_that_are_closed_leave_nothing_behind(tmp_path: Path) -> None:
    """A week of visits: no stream, no task, no subscriber is left, and there are never too many."""
    async with deciding(tmp_path, "none") as one, looking(one) as browser:
        subscribers = len(one.built.wakeups.outbox._subscribers)
        tasks = len(asyncio.all_tasks())
        for _ in range(7):
            open_ones = [
                await browser.client.get(f"{browser.url}/console/changes") for _ in range(MAX_STREAMS + 3)
            ]
            with anyio.fail_after(60):
                while browser.streams.count != MAX_STREAMS:
                    await anyio.sleep(0.02)
            for each in open_ones:
                each.close()
            one.built.wakeups.outbox.fire("matrix")
            with anyio.fail_after(60):
                while browser.streams.count:
                    await anyio.sleep(0.02)
        assert len(one.built.wakeups.outbox._subscribers) == subscribers
        with anyio.fail_after(60):
            while len(asyncio.all_tasks()) > tasks + 2:
                await anyio.sleep(0.02)


async def test_the_owner_gets_a_link_in_a_chat_and_nobody_else(tmp_path: Path) -> None:
    settings = {**SETTINGS, "gateway": {"http": {"listen": "127.0.0.1:8811", "console": True}}}
    async with deciding(tmp_path, "none", settings=settings) as one:
        with anyio.fail_after(60):
            mine = await one.asked("!console", person=ANN)
            other = await one.asked("!console", person=BOB)
    assert "http://127.0.0.1:8811/console/enter?token=" in mine.text
    assert "Only my owner" in other.text
    async with deciding(tmp_path / "off", "none") as one:
        assert "I have no console" in (await one.asked("!console", person=ANN)).text
