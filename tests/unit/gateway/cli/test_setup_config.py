"""A new configuration says what was answered; one that is there stays to the letter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from channels.email.setup.mail_form import email_settings, proof_settings
from channels.email.setup.mail_probe import MailboxLogin
from channels.email.setup.mail_providers import ProviderServer
from channels.matrix.setup.matrix_form import matrix_settings
from channels.setup import SetupRefused
from gateway.cli.setup.config_lines import Answers, lines_of, render_value
from gateway.cli.setup.config_writer import plan, read_existing, write_setup
from gateway.cli.setup.model_probe import ModelOffer
from gateway.cli.setup.options import clean, clean_secret
from gateway.errors import ConfigInvalid
from gateway.settings.source import compose, plain

HOSTILE = [
    'a"b', "a'b", "a#b", "a # b", "a: b", "- a", "[a", "{a}", "${HOME}", "$${HOME}", "${secret:x}", "${", "%a", "@a", "`a", "!a",
    "&a", "*a", "|", ">", "~", "null", "true", "off", "1", "1e5", "0x1", "22:00", "=", "<<", "\u00e4\U0001f600", "\u202ea",
    "a\\n", "a\\", "x" * 499, "\u200d", "\x7f", "\u0085", "a\u00a0b",
]  # fmt: skip


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.lists(st.text("ab:#-{}[]&*!|>'\"% \n", max_size=12)),
)
def test_any_text_survives(value, items):
    """Quotes, other types' words and steering characters mean nothing; neither do references."""
    lines = lines_of({"channels": {"matrix": {"user_id": value}}, "owner": {"aliases": items}})
    assert all(line.isprintable() for line in lines)
    data = plain(compose("\n".join(lines)))
    resolve_person = [one.replace("${", "$${") for one in (value, *items)]
    assert [data["channels"]["matrix"]["user_id"], *data["owner"]["aliases"]] == resolve_person


def test_a_value_without_its_quotes_would_be_noticed():
    """The control: put in as it is, a value changes its meaning."""
    assert plain(compose("a: a # b"))["a"] != "a # b"
    assert render_value("a # b") == '"a # b"'


# ── answers ──


@pytest.mark.parametrize(
    "value", ["a\nb", "a\rb", "\x1b[31m", "a\x00b", "\u2028", "\ud800", "x" * 501, "\ufeffx"]
)
def test_what_is_no_line_is_refused(value):
    """Line breaks, control characters and walls of text are no answers; a password of that kind neither."""
    with pytest.raises(ValueError, match="the answer has"):
        clean(f"a{value}z", "the answer")
    if len(value) < 500:
        with pytest.raises(ValueError, match="the answer has"):
            clean_secret(f"a{value}z", "the answer")


def answers(password="pw", **more):
    place = ProviderServer("127.0.0.1", 993, "tls")
    return Answers(
        owner=("@me:hs.test", "me@mail.test"),
        model=ModelOffer("openai/x", "openai", "", "sk-1"),
        channels={
            "matrix": matrix_settings("http://127.0.0.1:1", "@bot:hs.test", password),
            "email": email_settings(
                MailboxLogin("bot@mail.test", "bot", ""),
                place,
                place,
                password=password,
                sent_copy="self",
                proof=proof_settings(("mail.test",), headerless=False),
            ),
        },
        **more,
    )


def write(config, given, environ=None):
    """Returns the settings, and the YAML of what a person has to write."""
    environ = environ or {}
    settings, remains = write_setup(plan(read_existing(config, environ), given, environ), environ)
    return settings, "\n".join(lines_of(remains))


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_answers_arrive_as_they_were_given(tmp_path, value):
    """Passwords, which stay out of the file, and what looks like a reference; the same again lacks nothing."""
    given = answers(value)
    channels = {**given.channels, "email": {**given.channels["email"], "username": value}}
    given = replace(given, channels=channels, model=replace(given.model, model=f"openai/{value}"))
    config = tmp_path / "squidbot.yaml"
    settings, remains = write(config, given, {"HOME": "/x"})
    assert not remains
    assert settings.channels.matrix.password.get_secret_value() == value
    assert settings.channels.email.password.get_secret_value() == value
    assert settings.channels.email.username == value
    assert settings.llm.models["assistant"].model == f"openai/{value}"
    assert "${secret:matrix-password}" in config.read_text(encoding="utf-8")
    before = files(tmp_path)
    assert write(config, given, {"HOME": "/x"})[1] == ""
    assert files(tmp_path) == before


BY_HAND = """\
# first
owner: {aliases: ["@me:hs.test"]}  # me
channels:
  matrix:   # here
    homeserver: 'http://127.0.0.1:1'
    user_id: "${ME}"
    password: pw
    allow_from: ["@bob:x"]
  email:
# last
"""


def test_what_a_person_has_written_is_not_touched_and_what_it_lacks_is_told(tmp_path):
    """Only what reads differently is told; written there, nothing is lacking. Secrets go into their files."""
    config, environ = tmp_path / "squidbot.yaml", {"ME": "@bot:hs.test"}
    config.write_text(BY_HAND)
    config.chmod(0o600)
    _, remains = write(config, answers(), environ)
    assert config.read_text() == BY_HAND
    lacks = plain(compose(remains))
    assert lacks["owner"] == {"aliases": ["@me:hs.test", "me@mail.test"]}
    assert list(lacks["channels"]) == ["email"]
    assert lacks["llm"]["providers"]["openai"]["api_key"] == "${secret:openai-api-key}"
    assert "pw" not in remains and "sk-1" not in remains
    assert {path.name for path in (tmp_path / "secrets").iterdir()} == {"openai-api-key", "email-password"}

    whole = plain(compose(BY_HAND))
    whole["channels"]["email"] = lacks["channels"]["email"]
    config.write_text(yaml.safe_dump(whole | {"owner": lacks["owner"], "llm": lacks["llm"]}))
    assert write(config, answers(), environ)[1] == ""


def test_a_new_password_replaces_its_secret_and_needs_no_line(tmp_path):
    """Where the file names the secret already; a password that stands in it needs a line."""
    config = tmp_path / "squidbot.yaml"
    write(config, answers())
    planned = plan(read_existing(config, {}), answers("other"), {})
    assert [line.split()[0] for line in planned.told] == ["REPLACES", "REPLACES"]
    settings, remains = write_setup(planned, {})
    assert (settings.channels.matrix.password.get_secret_value(), remains) == ("other", {})
    config.write_text(config.read_text().replace('"${secret:matrix-password}"', "literal"))
    assert write(config, answers("third"))[1].splitlines()[-1].strip().startswith('password: "${secret:')


def test_what_would_not_work_is_not_put_in_place(tmp_path):
    """An answer that the settings refuse changes nothing; neither the file nor a secret."""
    config, secret = tmp_path / "squidbot.yaml", tmp_path / "secrets" / "matrix-password"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("old\n")
    bad = replace(answers(), channels={"matrix": matrix_settings("ftp://x", "@bot:hs.test", "new")})
    with pytest.raises(ConfigInvalid, match="nothing was written"):
        write(config, bad)
    assert files(tmp_path) == {secret: b"old\n"}


def test_a_secret_that_would_be_hidden_is_refused(tmp_path):
    """Where the service manager hands over another secret of that name, ours would never be read."""
    handed = tmp_path / "handed"
    handed.mkdir()
    (handed / "matrix-password").write_text("other")
    config = tmp_path / "home" / "squidbot.yaml"
    with pytest.raises(SetupRefused, match="comes from"):
        write(config, answers(), {"CREDENTIALS_DIRECTORY": str(handed)})
    assert not config.exists()


def test_a_channel_is_switched_off_and_on_again(tmp_path):
    """By one line each."""
    config = tmp_path / "squidbot.yaml"
    write(config, answers())
    off = Answers(("@me:hs.test",), off=frozenset({"matrix"}))
    lacks = plain(compose(write(config, off)[1]))
    assert lacks == {"channels": {"matrix": {"enabled": False}}}
    config.write_text(config.read_text().replace("enabled: true", "enabled: false", 1))
    assert plain(compose(write(config, answers())[1])) == {"channels": {"matrix": {"enabled": True}}}


def test_the_first_of_several_accounts_is_meant(tmp_path):
    """What it lacks is told, and nothing of the others."""
    config = tmp_path / "squidbot.yaml"
    config.write_text(
        "channels:\n  matrix:\n  - {homeserver: http://127.0.0.1:1, user_id: '@bot:hs.test', password: a}\n"
        "  - {name: two, homeserver: http://y, user_id: '@c:d', password: b}\n"
    )
    config.chmod(0o600)
    lacks = plain(compose(write(config, answers())[1]))
    assert lacks["channels"]["matrix"] == {"password": "${secret:matrix-password}"}
