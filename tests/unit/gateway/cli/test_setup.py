"""What `squidbot init` takes for given, guesses, finds and tells, each by itself."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import anyio
import pytest
import trustme
from aiohttp import web

from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec
from channels.base import ChannelError
from channels.email.mail_self_test import authentication_servers
from channels.email.setup.mail_probe import _word
from channels.email.setup.mail_providers import ProviderServer, guess, parse_place
from channels.matrix.setup.matrix_probe import is_in_clear, resolve
from channels.setup import SetupFailed, SetupRefused
from gateway.cli.check.check_report import CheckReport
from gateway.cli.check.login_checks import _check_pool
from gateway.cli.setup.config_lines import Answers, settings_of
from gateway.cli.setup.dialogue import Cancelled, Terminal, UnattendedDialogue
from gateway.cli.setup.model_probe import find_offer, offers, ollama_problem, prove
from gateway.cli.setup.options import Given, parse_options
from gateway.cli.setup.owner_questions import _another, ask_model, ask_owner, ask_timezone
from gateway.cli.setup.wizard import Init, ProgramCommand, missing
from gateway.settings import Settings
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from tests.command_fork import run_command
from tests.doubles.ollama_server import FakeOllama, Pulled
from tests.doubles.openai_server import FakeOpenAI, Say, Status

NOTHING = Settings()


def squidbot(home, *arguments, types="", **environ):
    """``squidbot init``, as a person types it."""
    usual = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return run_command("init", "--home", str(home), *arguments, env={**usual, **environ}, stdin=types)


# ── what is given ──


class AnsweringLisbon(UnattendedDialogue):
    """A person who is asked for the zone."""

    interactive = True

    def ask(self, question, default="", *, check=str, flag=""):
        assert "zone" in question
        return check("Europe/Lisbon")


def test_the_time_zone_is_asked_and_written():
    """By option, by question, or not at all; a wrong name is refused before anything is asked."""
    assert ask_timezone(Given(), NOTHING, UnattendedDialogue()) == ""
    assert ask_timezone(Given(timezone="Asia/Tokyo"), NOTHING, AnsweringLisbon()) == "Asia/Tokyo"
    assert ask_timezone(Given(), NOTHING, AnsweringLisbon()) == "Europe/Lisbon"
    assert ask_timezone(Given(), Settings(timezone="Europe/Lisbon"), AnsweringLisbon()) == ""
    assert settings_of(Answers((), timezone="Europe/Lisbon"), {}) == {"timezone": "Europe/Lisbon"}
    assert settings_of(Answers((), language="de"), {}) == {"language": "de"}
    with pytest.raises(SetupRefused, match="unknown time zone 'Mars'"):
        parse_options({"timezone": "Mars"}, {})


def test_options_count_before_the_environment(tmp_path):
    """Every option has its variable; a secret comes from a file or a variable, without the line break."""
    file = tmp_path / "secret"
    file.write_text(" of file \r\n")
    environ = {
        "SQUIDBOT_INIT_MATRIX_USER": "@e:x",
        "SQUIDBOT_INIT_MATRIX_PASSWORD": "of environment",
        "SQUIDBOT_INIT_EMAIL_PASSWORD_FILE": str(file),
        "SQUIDBOT_INIT_OWNER": "@a:b, c@d",
        "SQUIDBOT_INIT_HELLO": "no",
        "SQUIDBOT_INIT_EMAIL_ADDRESS": "bot@x",
    }
    found = parse_options({"matrix_user": "@o:x", "owner": None}, environ)
    assert (found.matrix_user, found.matrix_password) == ("@o:x", "of environment")
    assert (found.email_password, found.owner, found.hello) == (" of file ", ("@a:b", "c@d"), False)
    assert found.email_address == "bot@x"
    assert "of environment" not in repr(found)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    """A file that is not there, a word that is none, a line break: one sentence each, exit code 2."""
    options = {"matrix_password_file": tmp_path / "no", "model": "a\nb", "install": "both"}
    with pytest.raises(SetupRefused) as caught:
        parse_options(options, {"SQUIDBOT_INIT_PROBE": "perhaps"})
    said = str(caught.value).splitlines()
    assert caught.value.exit_code == 2
    assert [line.split(" ")[0] for line in said] == [
        "--matrix-password-file:", "--model", "SQUIDBOT_INIT_PROBE", "--install",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (Given(), ["--matrix-user"]),
        (Given(matrix=False, email=False), []),
        (Given(matrix_user="@a:b"), ["--matrix-password-file", "--owner"]),
        (Given(matrix_password="x", owner=("@a:b",)), ["--matrix-user"]),
        (Given(email=True, owner=("a@b",)), ["--email name", "--email-password-file"]),
        (Given(matrix=False, email=False, model="openai/x"), ["OPENAI_API_KEY"]),
        (Given(matrix=False, email=False, model="x"), ["provider/name"]),
        (Given(matrix=False, email=False, model="openai/x", api_key="k"), []),
        (Given(matrix=False, email=False, model="x", api_base="http://127.0.0.1:1"), []),
    ],
)
def test_what_is_missing_names_its_option(given, flags):
    """Each missing piece is one sentence."""
    found = missing(given, NOTHING, {})
    assert len(found) == len(flags)
    assert all(flag in sentence for flag, sentence in zip(flags, found, strict=True))


def test_missing_pieces_are_exit_code_2_and_no_file(tmp_path):
    """As a process: sentences on stderr, nothing in the home; a password on the command line is no option."""
    home = tmp_path / "home"
    done = squidbot(home, "--yes", "--matrix-user", "@bot:hs.test")
    assert done.returncode == 2
    assert "--matrix-password-file" in done.stderr
    assert "--owner" in done.stderr
    assert not home.exists()
    assert squidbot(home, "--yes", "--matrix-password", "pw").returncode != 0
    assert not home.exists()


def test_the_terminal_alone_needs_no_server(tmp_path):
    """Without Matrix and mail a model is enough; the same once more changes nothing."""
    home = tmp_path / "home"
    words = ("--yes", "--no-matrix", "--no-email", "--model", "demo")
    first = squidbot(home, *words)
    assert first.returncode == 0
    assert re.search(rf"the daemon; then \S.* chat --home {home}\n", first.stdout)
    before = (home / "squidbot.yaml").read_bytes()
    again = squidbot(home, *words)
    assert "Nothing changes" in again.stdout
    assert (home / "squidbot.yaml").read_bytes() == before
    other = squidbot(home, "--yes", "--no-matrix", "--no-email", "--model", "demo/echo")
    assert other.returncode == 0
    assert '    assistant:\n      model: "demo/echo"\n' in other.stdout
    assert (home / "squidbot.yaml").read_bytes() == before
    (home / "squidbot.yaml").write_text("owner: {alias: 1}\n")
    broken = squidbot(home, *words)
    assert (broken.returncode, (home / "squidbot.yaml").read_text()) == (78, "owner: {alias: 1}\n")
    assert "Fix this first" in broken.stderr


class Interrupted(UnattendedDialogue):
    """Somebody who presses Ctrl-C so many times at the last question."""

    def __init__(self, times):
        self.left = times

    def agree(self, question, *, default):
        if question == "Write this?" and self.left:
            self.left -= 1
            raise KeyboardInterrupt
        return default


@pytest.mark.parametrize("times", [1, 2])
def test_one_interrupt_at_the_end_loses_no_answer(tmp_path, times):
    """The second one leaves, and nothing is written."""
    home = tmp_path / "home"
    given = Given(matrix=False, email=False, model="demo", hello=False)
    init = Init(given, Home(home), home / "squidbot.yaml", Interrupted(times), {})
    if times == 2:
        with pytest.raises(Cancelled):
            init.run()
    else:
        assert init.run() == 0
    assert (home / "squidbot.yaml").exists() is (times == 1)


def test_whoever_breaks_off_is_shown_how_to_go_on(tmp_path, monkeypatch, capsys):
    """The command line has all answers, each as it was given last, and no secret."""
    typed = "n\ny\nbot@mail.invalid\nbot\nk4n4ry"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    home, repeated = (
        tmp_path / "home",
        ("init", "--email-user", "old", "--model=demo", "--no-hello"),
    )
    monkeypatch.setattr("channels.email.setup.mail_form.probe_mailbox", raised(KeyboardInterrupt()))
    init = Init(
        Given(model="demo"),
        Home(home),
        home / "squidbot.yaml",
        Terminal(),
        {},
        called=ProgramCommand(arguments=repeated),
    )
    with pytest.raises(Cancelled):
        init.run()
    said = capsys.readouterr().out
    again = "squidbot init --model=demo --no-hello --no-matrix --email bot@mail.invalid --email-user bot"
    assert f"go on with the same answers:\n  {again}\n" in said
    assert "k4n4ry" not in said


def test_whoever_has_said_nothing_is_shown_nothing(tmp_path, monkeypatch, capsys):
    """The control."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    home = tmp_path / "home"
    with pytest.raises(Cancelled):
        Init(
            Given(),
            Home(home),
            home / "squidbot.yaml",
            Terminal(),
            {},
            called=ProgramCommand(arguments=("init",)),
        ).run()
    assert "same answers" not in capsys.readouterr().out


def raised(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


def test_an_empty_answer_keeps_nothing_where_nothing_is(monkeypatch, capsys):
    """The key of an own model server: there was none before."""
    monkeypatch.setattr("sys.stdin", io.StringIO("openai/own\nhttp://127.0.0.1:1/v1\n\n"))
    offer = _another(Terminal(), {})
    assert (offer.api_base, offer.api_key) == ("http://127.0.0.1:1/v1", "")
    said = capsys.readouterr().out
    assert "empty for none" in said and "keeps" not in said


# ── mail servers ──


def test_known_providers_and_the_usual_names():
    """The table for those in it; otherwise imap. and smtp. of the domain, TLS at once first."""
    assert guess("x@gmail.com").sent_copy == "server"
    assert guess("x@GMail.com").authserv_ids == ("mx.google.com",)
    assert guess("x@outlook.com").headerless
    assert str(guess("x@gmx.de").imap[0]) == "tls://imap.gmx.net:993"
    for domain in ("icloud.com", "yahoo.com", "fastmail.com", "posteo.de", "mailbox.org", "hotmail.com"):
        assert guess(f"x@{domain}").provider
    own = guess("x@example.org")
    assert own.provider == ""
    assert [str(one) for one in own.smtp][:2] == [
        "tls://smtp.example.org:465", "starttls://smtp.example.org:587",
    ]  # fmt: skip
    assert own.imap[0].host == "imap.example.org"
    assert guess("x@own.example", ProviderServer("imap.gmail.com", 993, "tls")).provider == "Gmail"


def test_servers_as_people_write_them():
    """The port tells the security, unless it is named; what is not a server is refused."""
    assert str(parse_place("a.example", "imap")) == "tls://a.example:993"
    assert str(parse_place("a.example", "smtp")) == "starttls://a.example:587"
    assert str(parse_place("a.example:465", "smtp")) == "tls://a.example:465"
    assert str(parse_place("a.example:143", "imap")) == "starttls://a.example:143"
    assert str(parse_place("tls://[::1]:1993", "imap")) == "tls://[::1]:1993"
    for wrong in ("", "a b", "ftp://x", "x:0", "x:99999", "x:y", "tls://u@x", "a/b", 'a"b', "[::1"):
        with pytest.raises(ValueError, match="not a server"):
            parse_place(wrong, "imap")


def mail(*fields):
    return "".join(f"Authentication-Results: {field}\r\n" for field in fields).encode() + b"From: a@b\r\n\r\n"


def test_whose_word_counts_is_believed_only_if_all_mails_agree():
    """The topmost field of every mail, and one mail without it or with another spoils it: anybody can write one."""
    own, forged = mail("mx.own.example; dmarc=pass", "evil; dkim=pass"), mail("evil.example; dmarc=pass")
    where = guess("x@example.org")
    assert _word(authentication_servers([own] * 3), where)["authserv_ids"] == ("mx.own.example",)
    for mails in ([own] * 2, [own, own, own, forged], [own, own, own, mail()], [mail()] * 5, []):
        assert _word(authentication_servers(mails), where) == {}


# ── the homeserver ──


@pytest.fixture
async def site():
    """A web site that says what it is told, by path."""
    says: dict[str, tuple[int, str]] = {}

    async def answer(request):
        status, text = says.get(request.path, (404, "<html>no"))
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", says
    await runner.cleanup()


async def test_the_homeserver_is_found_by_its_well_known(site):
    """What it says is used if Matrix is spoken there; every other case is said in plain words."""
    url, says = site
    find = lambda: anyio.to_thread.run_sync(resolve, url, None)  # noqa: E731
    with pytest.raises(ChannelError, match="no Matrix homeserver at"):
        await find()
    says["/.well-known/matrix/client"] = (200, json.dumps({"m.homeserver": {"base_url": f"{url}/there/"}}))
    with pytest.raises(ChannelError, match="no Matrix server answers there"):
        await find()
    says["/there/_matrix/client/versions"] = (200, '{"versions": ["v1.11"]}')
    assert await find() == f"{url}/there"
    for wrong, told in (
        ('{"m.homeserver": 1}', "does not say"),
        ('{"m.homeserver": {"base_url": "x"}}', "is wrong"),
        ('{"m.homeserver": {"base_url": "http://hs.example"}}', "unencrypted"),
    ):
        says["/.well-known/matrix/client"] = (200, wrong)
        with pytest.raises(ChannelError, match=told):
            await find()
    says["/_matrix/client/versions"] = (200, '{"versions": []}')
    assert await find() == url
    assert is_in_clear("http://hs.example")
    assert not is_in_clear(url)
    with pytest.raises(ValueError, match="homeserver"):
        resolve("https://", None)


# ── the model ──


def test_what_the_machine_offers():
    """Keys in the environment, then a local Ollama, then the demo model, which is always there."""
    environ = {"OPENAI_API_KEY": "o", "OPENROUTER_API_KEY": "r", "GEMINI_API_KEY": ""}
    found = offers(environ, ["llama3"])
    assert [one.model.split("/")[0] for one in found] == ["openai", "openrouter", "ollama", "demo"]
    assert (found[2].api_base, found[2].model) == ("http://127.0.0.1:11434/v1", "ollama/llama3")
    assert "o" not in [one.told for one in found]
    assert find_offer("openai/x", api_base="", api_key="", environ=environ).api_key == "o"
    assert find_offer("../x y/z", api_base="", api_key="k", environ={}).secret_name == "provider-api-key"


def test_only_a_protocol_of_its_own_needs_litellm():
    """Anthropic's is spoken here, too."""
    names = ("openai/x", "anthropic/x", "ollama/x", "demo", "bedrock/x", "vertex_ai/x")
    found = [find_offer(name, api_base="", api_key="k", environ={}).needs_litellm for name in names]
    assert found == [False, False, False, False, True, True]


async def test_a_model_is_taken_only_if_it_answers():
    """One question; a refusal is a sentence and the end, unless nobody wants to know."""
    async with FakeOpenAI() as fake:
        given = Given(model="tiny", api_base=fake.api_base, api_key="k4n4ry")
        fake.plan(Say("OK"))
        ask = lambda given: ask_model(given, NOTHING, UnattendedDialogue(), {})  # noqa: E731
        offer = await anyio.to_thread.run_sync(ask, given)
        assert (offer.model, offer.api_base, offer.api_key) == ("openai/tiny", fake.api_base, "k4n4ry")
        assert len(fake.requests) == 1
        fake.plan(*[Status(401)] * 8)
        with pytest.raises(SetupFailed, match="does not answer") as caught:
            await anyio.to_thread.run_sync(ask, given)
        assert "k4n4ry" not in str(caught.value)
        asked = len(fake.requests)
        unproved = Given(model="tiny", api_base=fake.api_base, api_key="k", probe=False)
        assert (await anyio.to_thread.run_sync(ask, unproved)).model == "openai/tiny"
        assert len(fake.requests) == asked
    assert prove(find_offer("tiny", api_base="ftp://x", api_key="", environ={})) != ""


def test_the_owner_is_a_person_and_not_the_bot():
    """An address of a channel; the bot's own is refused."""
    ask = lambda *owner: ask_owner(  # noqa: E731
        Given(owner=owner),
        NOTHING,
        UnattendedDialogue(),
        channels={"matrix": "@bot:hs.test", "email": "bot@mail.test"},
    )
    assert ask("@me:hs.test", "Me@mail.test") == ("@me:hs.test", "me@mail.test")
    for wrong in ("@bot:hs.test", "BOT@mail.test", "me", "@me", "a@b@c d"):
        with pytest.raises(SetupRefused, match="--owner"):
            ask(wrong)
    with pytest.raises(
        SetupRefused, match=r"'me' is not an address; write @you:example\.org or you@example\.org"
    ):
        ask("me")


@pytest.mark.parametrize(
    "wrong", [("--owner", "me"), ("--email", "nobody"), ("--matrix-user", "bot"), ("--tls-ca-file", "no.pem")]
)
def test_a_value_that_no_option_can_have_is_wrong_usage(tmp_path, wrong):
    """Exit code 2, as for every other mistake in the command line, and nothing is written."""
    off = [f"--no-{kind}" for kind in ("matrix", "email") if not wrong[0].startswith(f"--{kind}")]
    secrets = dict.fromkeys(("SQUIDBOT_INIT_EMAIL_PASSWORD", "SQUIDBOT_INIT_MATRIX_PASSWORD"), "secret")
    owner = () if wrong[0] == "--owner" else ("--owner", "me@mail.test")
    done = squidbot(tmp_path, "--yes", "--model", "demo", *off, *owner, *wrong, **secrets)
    assert (done.returncode, wrong[0] in done.stderr, wrong[1] in done.stderr) == (2, True, True), done.stderr
    assert not (tmp_path / "squidbot.yaml").exists()


def test_a_file_of_certificates_must_be_one(tmp_path):
    """Also where no server is asked for which it would count; a good one is accepted."""
    file = tmp_path / "own.pem"
    file.write_text("hello")
    with pytest.raises(
        SetupRefused, match=r"--tls-ca-file: .*own\.pem is not a readable file of PEM certificates"
    ):
        parse_options({"tls_ca_file": str(file)}, {})
    trustme.CA().cert_pem.write_to_path(file)
    assert parse_options({"tls_ca_file": str(file)}, {}).tls_ca_file == str(file)


class Ollama(BaseHTTPRequestHandler):
    """The list of what an Ollama has loaded."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"models": [{"name": "qwen3:4b"}, {"name": "phi:latest"}]}).encode())

    def log_message(self, *_arguments):
        """Nothing on the terminal."""


def test_a_model_of_ollama_is_called_so_and_looked_for_there():
    """Its name is not openai/…; before it is asked, it is clear whether Ollama runs and has it."""
    offer = {
        name: find_offer(f"ollama/{name}", api_base="", api_key="", environ={}) for name in ("foo", "phi")
    }
    assert offer["foo"].name == "ollama/foo"
    assert find_offer("openai/gpt-5-mini", api_base="", api_key="", environ={}).name == "openai/gpt-5-mini"
    assert find_offer("foo", api_base="https://own.test/v1", api_key="", environ={}).name == "openai/foo"
    with HTTPServer(("127.0.0.1", 0), Ollama) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        there = {name: replace(one, api_base=f"{url}/v1") for name, one in offer.items()}
        assert "ollama pull foo" in ollama_problem(there["foo"], url)
        assert ollama_problem(there["phi"], url) == ""
        server.shutdown()
    assert "ollama serve" in ollama_problem(there["phi"], url)


async def test_what_a_model_cannot_do_is_said(tmp_path):
    """No tools, a smaller window than wished; and how a model that is not there is loaded."""
    async with FakeOllama() as fake:
        fake.models["qwen3:4b"] = Pulled(capabilities=("completion",))
        said = []
        prove_it = lambda name: prove(  # noqa: E731
            find_offer(f"ollama/{name}", api_base=fake.api_base, api_key="", environ={}), said.append
        )
        assert await anyio.to_thread.run_sync(prove_it, "qwen3:4b") == ""
        assert "cannot use tools" in said[0]
        assert "ollama pull foo" in await anyio.to_thread.run_sync(prove_it, "foo")
        described = LLMSpec.model_validate(
            {
                "providers": {"own": {"api_base": fake.api_base}},
                "models": {"m": {"provider": "own", "model": "ollama/qwen3:4b", "max_context_tokens": 99999}},
                "pools": {"main": ["m"]},
            }
        )
        models = build_models(described, SystemClock())
        try:
            report = CheckReport()
            await _check_pool(report, SimpleNamespace(models=models), "main")
        finally:
            await models.aclose()
        told = [finding.text for finding in report.findings]
        assert any("max_context_tokens: 40960" in text for text in told)
        assert any("cannot use tools" in text for text in told)


def test_a_home_of_somebody_else_is_left_alone(tmp_path):
    """Root writes nothing into it, because its owner could not read that."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else's guest")
    os.chown(tmp_path, 12345, 12345)
    done = squidbot(tmp_path, "--yes", "--no-matrix", "--no-email", "--model", "demo")
    assert done.returncode == 74
    assert "belongs to another user" in done.stderr
    assert list(tmp_path.iterdir()) == []
