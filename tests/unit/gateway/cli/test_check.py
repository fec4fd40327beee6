"""`squidbot check`: what is wrong is found, named, and nothing is taken from any server meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from channels.base import Capabilities, ChannelAuthFailed, ChannelUnavailable, LinkState, Redelivery
from channels.matrix.crypto.account_check import encryption_findings
from gateway.cli.check.all_checks import _check_search, check
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.cli.check.login_checks import (
    _check_one,
    ask_failing,
    check_channel,
    report_findings,
    report_running,
)
from gateway.settings import Settings
from gateway.system.home import Home
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.openai_server import FakeOpenAI, Say, Status
from tests.web_world import http, server


async def nothing_stored(_name):
    return None


class FailingChannel:
    name, account = "matrix", "@bot:hs.test"
    capabilities = Capabilities(redelivery=Redelivery.REVIEW)

    def __init__(self, error=None, state=None):
        self.error, self.state = error, state

    async def run(self, inbox):
        if self.state is not None:
            inbox.report(self.state)
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        await anyio.sleep_forever()


class TestChannel:
    @pytest.mark.parametrize("state", [LinkState.UP, LinkState.CATCHING_UP])
    async def test_a_login_is_enough(self, state):
        """A channel that has a lot to catch up with is fine."""
        assert await check_channel(FailingChannel(state=state), nothing_stored) == (
            FindingLevel.OK,
            "logged in as @bot:hs.test",
        )

    @pytest.mark.parametrize(
        "error", [ChannelAuthFailed("the password is wrong"), ChannelUnavailable("refused")]
    )
    async def test_the_channels_own_words_are_the_answer(self, error):
        """Whatever it says stands in the report."""
        assert await check_channel(FailingChannel(error), nothing_stored) == (FindingLevel.FAILED, str(error))

    async def test_a_server_that_says_nothing_is_given_up(self):
        """After a limit, with a hint."""
        verdict, text = await check_channel(FailingChannel(), nothing_stored, limit_s=0.05)
        assert verdict is FindingLevel.FAILED
        assert "no login within" in text

    async def test_a_channel_that_can_examine_itself_is_asked_to(self):
        """Logging in is not enough where sending is another server's business; `run` is left alone."""

        class Mailbox(FailingChannel):
            refusal = None

            async def check(self):
                if self.refusal is not None:
                    raise self.refusal
                return {}

        mailbox = Mailbox(ChannelUnavailable("run was called"))
        assert await check_channel(mailbox, nothing_stored) == (FindingLevel.OK, "logged in as @bot:hs.test")
        mailbox.refusal = ChannelAuthFailed("no login for sending")
        assert await check_channel(mailbox, nothing_stored) == (FindingLevel.FAILED, "no login for sending")

    async def test_no_message_is_acknowledged(self):
        """What waits at the server is still there afterwards, for the daemon."""
        server = LoopbackServer()
        server.say("alice", "hello")
        assert (await check_channel(LoopbackChannel(server), nothing_stored))[0] is FindingLevel.OK
        assert server.acknowledged == 0


class TestWhole:
    def test_a_broken_configuration_is_the_only_finding(self, tmp_path):
        """Nothing else can be known; the exit code is that of the daemon."""
        (tmp_path / "c.yaml").write_text("agents: {x: 1}")
        report = check(Home(tmp_path / "h"), tmp_path / "c.yaml")
        assert report.exit_code == 78
        assert [one.part for one in report.findings] == ["configuration"]
        assert not (tmp_path / "h").exists()

    def test_without_a_configuration_it_says_who_makes_one(self, tmp_path):
        """There are no lines to correct."""
        [finding] = check(Home(tmp_path / "h"), tmp_path / "c.yaml").findings
        assert finding.what_to_do == "run squidbot init, or name the file with --config"
        (tmp_path / "c.yaml").write_text("agents: {x: 1}")
        [finding] = check(Home(tmp_path / "h"), tmp_path / "c.yaml").findings
        assert "correct the lines above" in finding.what_to_do

    def test_every_part_is_named(self, tmp_path):
        """Configuration, home, database, channels that cannot be reached, models that do not answer."""
        (tmp_path / "c.yaml").write_text(
            "owner: {aliases: ['@a:hs.test']}\n"
            "llm: {providers: {p: {api_base: 'http://127.0.0.1:9', api_key: k}},"
            " models: {m: {provider: p, model: openai/x}}, pools: {main: [m]}}\n"
            "channels: {matrix: {homeserver: 'http://127.0.0.1:9', user_id: '@b:hs.test', password: p}}\n"
        )
        report = check(Home(tmp_path / "h"), tmp_path / "c.yaml")
        found = {one.part: one for one in report.findings if one.part != "configuration"}
        always = {"home", "disk", "unit", "matrix homeserver", "provider p", "clock", "database"}
        assert always | {"matrix", "model pool main"} == found.keys() - {"permissions"}
        assert found["matrix homeserver"].verdict is found["model pool main"].verdict is FindingLevel.FAILED
        assert "refuses the connection" in found["matrix homeserver"].text
        assert found["matrix"].verdict is FindingLevel.SKIPPED  # a login there would only wait
        assert report.exit_code == 1
        assert "fail     matrix homeserver: " in report.as_text()

    def test_the_keys_of_the_json_stay(self, tmp_path):
        """Programs read them; each finding has the same four, and the state is one of four words."""
        (tmp_path / "c.yaml").write_text("agents: {heartbeat: {enabled: false}}")
        told = check(Home(tmp_path / "h"), tmp_path / "c.yaml").as_dict()
        assert told.keys() == {"ok", "exit_code", "checks"}
        assert (told["ok"], told["exit_code"]) == (True, 0)
        for one in told["checks"]:
            assert one.keys() == {"name", "state", "text", "what_to_do"}
            assert one["state"] in {"ok", "warn", "fail", "skipped"}

    def test_a_configuration_that_was_good_says_what_changed(self, tmp_path):
        """And how to go back."""
        home = Home(tmp_path)
        home.last_good.parent.mkdir()
        home.last_good.write_text("agents: {}\n")
        home.config_file.write_text("agents: {x: 1}\n")
        [finding] = check(home, home.config_file).findings
        assert "+ line 1: agents: {x: 1}" in finding.text
        assert "config restore" in finding.what_to_do

    def test_an_error_of_before_is_not_told_of_a_channel_that_is_up(self):
        """It belongs to a state that is over; while it lasts it is what is told."""
        for state, verdict, said in (("up", "ok", "up"), ("down", "fail", "down: no route")):
            report = CheckReport()
            channel = {"state": state, "detail": "", "last_error": "no route"}
            report_running(report, {"pid": 1, "channels": {"email": channel}})
            assert [(one.verdict.value, one.text) for one in report.findings[1:]] == [(verdict, said)]

    def test_a_running_daemon_also_says_how_its_models_are(self):
        """A pool without a model that answers is a failure, one with a spare is not."""

        def member(name, error=""):
            return {"name": name, "error": error, "answers": 2}

        pools = {
            "fine": [member("a")],
            "spare": [member("a", "401"), member("b")],
            "gone": [member("a", "401")],
        }
        report = CheckReport()
        report_running(report, {"pid": 1, "channels": {}, "models": pools})
        assert [(one.part, one.verdict.value) for one in report.findings] == [
            ("daemon", "ok"),
            ("model pool fine", "ok"),
            ("model pool spare", "warn"),
            ("model pool gone", "fail"),
        ]
        assert report.exit_code == 1

    async def test_a_model_that_answers_again_is_no_failure(self):
        """It is asked, because the daemon knows only after its next message; what still fails is told."""
        async with FakeOpenAI() as fake:
            provider = {"api_base": fake.api_base, "api_key": "x"}
            models = {name: {"provider": "p", "model": f"openai/{name}"} for name in ("a", "b", "unasked")}
            pools = {"main": ["a"], "two": ["b"], "fine": ["unasked"]}
            llm = {"default_pool": "main", "providers": {"p": provider}, "models": models, "pools": pools}
            fake.plan(Say("OK"), Status(402, "no credit"))
            status = {
                "models": {
                    "main": [{"name": "a", "error": "old", "answers": 1}],
                    "fine": [{"name": "unasked", "error": "", "answers": 1}],
                    "gone": [{"name": "renamed", "error": "old", "answers": 0}],
                }
            }
            said = await ask_failing(Settings.model_validate({"llm": llm}), status)
            assert said == {"a": ""}
            status["models"]["two"] = [{"name": "b", "error": "older", "answers": 1}]
            llm |= {"pools": {"two": ["b"]}, "default_pool": "two"}
            said = await ask_failing(Settings.model_validate({"llm": llm}), status)
            assert "no credit" in said["b"]
            assert len(fake.requests) == 2
        report = CheckReport()
        report_running(report, {"pid": 1, "channels": {}, **status}, {"a": "", **said})
        assert [(one.part, one.verdict.value) for one in report.findings[1:]] == [
            ("model pool main", "warn"),
            ("model pool fine", "ok"),
            ("model pool gone", "fail"),
            ("model pool two", "fail"),
        ]
        assert "answers now; before\na: old" in report.findings[1].text
        assert "no credit" in report.findings[-1].text

    def test_several_lines_stay_together(self):
        """The list of a broken configuration is indented under its part."""
        report = CheckReport()
        report.fail("configuration", "x: 2 problems\n  line 1\n  line 2")
        assert report.as_text().splitlines()[1:] == ["           line 1", "           line 2"]


GOOD = {
    "device": "D",
    "keys_published": True,
    "identity": True,
    "signed": True,
    "one_time_keys": 50,
    "backup": "",
}


async def nothing_stored_of(_name, _account, _topic):
    return None


class TestEncryption:
    @pytest.mark.parametrize(
        ("changes", "verdict", "said"),
        [
            ({}, "ok", "published and signed"),
            ({"backup": "3"}, "ok", "key backup of version 3"),
            ({"keys_published": False}, "fail", "not published"),
            ({"identity": False, "signed": False}, "warn", "no cross-signing identity"),
            ({"signed": False}, "warn", "not signed"),
            ({"one_time_keys": 0}, "warn", "only 0 one-time keys"),
        ],
    )
    def test_each_shortcoming_is_told(self, changes, verdict, said):
        """With what to do; an account without any is fine."""
        report = CheckReport()
        report_findings(report, "matrix", encryption_findings({**GOOD, **changes}, running=True))
        [finding] = report.findings
        assert (finding.part, finding.verdict.value) == ("matrix encryption", verdict)
        assert said in finding.text
        assert bool(finding.what_to_do) == (verdict != "ok")

    def test_before_the_first_start_missing_keys_are_no_failure(self):
        """After a restore or a login by `check` the daemon publishes them; that is said, and the exit code is 0."""
        report = CheckReport()
        missing = encryption_findings({**GOOD, "keys_published": False}, running=False)
        report_findings(report, "matrix", missing)
        assert report.exit_code == 0
        assert "start the daemon" in report.as_text()

    async def test_it_is_checked_without_a_daemon_too(self):
        """After the login; a channel without the ability has nothing to say (the control)."""

        class Encrypted(LoopbackChannel):
            async def account_findings(self, *, running):
                return encryption_findings({**GOOD, "signed": False}, running=running)

        queue = SimpleNamespace(inbox=SimpleNamespace(position=nothing_stored_of))
        found = []
        for channel in (Encrypted(LoopbackServer()), LoopbackChannel(LoopbackServer())):
            report = CheckReport()
            await _check_one(report, SimpleNamespace(store=queue), channel)
            found.append([one.part.partition(" ")[2] for one in report.findings])
        assert found == [["", "encryption"], [""]]


class TestSearch:
    @pytest.mark.parametrize(
        ("reply", "verdict", "said"),
        [
            (
                http(200, b'{"results": [{"url": "https://example.org/"}]}'),
                FindingLevel.OK,
                "searxng answers",
            ),
            (http(403), FindingLevel.WARNING, "search: formats: [html, json]"),
            (http(404), FindingLevel.WARNING, "tools.web.search.url"),
        ],
    )
    async def test_the_provider_of_searches_is_asked(self, reply, verdict, said):
        """Once, and what is wrong is said with what helps."""
        async with server() as searxng:
            searxng.answers["/search"] = reply
            search = {"provider": "searxng", "url": searxng.url()}
            report = CheckReport()
            await _check_search(report, Settings.model_validate({"tools": {"web": {"search": search}}}))
        [finding] = report.findings
        assert (finding.part, finding.verdict) == ("web search", verdict)
        assert said in finding.text

    async def test_without_a_provider_nobody_is_asked(self):
        report = CheckReport()
        await _check_search(report, Settings())
        assert not report.findings
