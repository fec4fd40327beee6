"""Single settings change in a YAML file, and every other character stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.setup.config_changes import Answers, EmailAnswers, MatrixAnswers, draft, literal
from gateway.cli.setup.config_write import look, plan, put
from gateway.cli.setup.mail_providers import Place
from gateway.cli.setup.model_probe import ModelOffer
from gateway.cli.setup.options import clean, clean_secret
from gateway.cli.setup.yaml_edit import changed, rendered
from gateway.settings import load_settings
from gateway.settings.source import compose, plain, read_source
from tests.clock import EPOCH

HOSTILE = [
    'a"b', "a'b", "a#b", "a # b", "a: b", "- a", "[a", "{a}", "${HOME}", "$${HOME}", "${secret:x}", "${", "%a", "@a", "`a", "!a",
    "&a", "*a", "|", ">", "~", "null", "true", "off", "1", "1e5", "0x1", "22:00", "=", "<<", "\u00e4\U0001f600", "\u202ea",
    "a\\n", "a\\", "x" * 499, "\u200d", "\x7f", "\u0085", "a\u00a0b",
]  # fmt: skip
BY_HAND = """\
# first
owner: {aliases: ["@a:b"]}  # me

channels:

  # about matrix
  matrix:   # here
      homeserver: 'https://a.example'  # hs
      user_id: "@a:b"
      rooms:
        "#x:y": {policy: open}
      # at the end
  email:
# last
"""


def said(text):
    return plain(compose(text))


@pytest.mark.parametrize(
    "base", ["", "# only words\n", BY_HAND, "{a: 1, b: {}}", "a: 1", "a:\n- 1\n- 2\n\n\n"]
)
@pytest.mark.parametrize("value", HOSTILE)
def test_every_value_comes_out_as_it_went_in(base, value):
    """Quotes, references, other types' words and steering characters mean nothing, wherever they are put."""
    wanted = {
        ("channels", "matrix", "homeserver"): value,
        ("channels", "email", "imap"): {"host": value, "port": 1},
        ("owner", "aliases"): [value, "x"],
    }
    new = changed(base, wanted, {("channels",): "note\nmore", ("channels", "matrix", "homeserver"): "note"})
    data = said(new.text)
    assert data["channels"]["matrix"]["homeserver"] == value
    assert data["channels"]["email"]["imap"] == {"host": value, "port": 1}
    assert data["owner"]["aliases"] == [value, "x"]
    assert not new.anew
    assert changed(new.text, wanted, {}).text == new.text


def test_a_value_without_its_quotes_would_be_noticed():
    """The control: put in as it is, a value changes its meaning."""
    assert said("a: a # b")["a"] != "a # b"
    assert rendered("a # b") == '"a # b"'


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.lists(st.text("ab:#-{}[]&*!|>'\"% \n", max_size=12)),
)
def test_any_text_survives(value, items):
    """Not only those that somebody has thought of."""
    wanted = {("channels", "matrix", "user_id"): value, ("owner", "aliases"): items}
    data = said(changed(BY_HAND, wanted, {}).text)
    assert (data["channels"]["matrix"]["user_id"], data["owner"]["aliases"]) == (value, items)


def test_everything_else_stays_to_the_letter():
    """Comments, empty lines, indentation and quotes of others."""
    wanted = {
        ("channels", "matrix", "homeserver"): "https://b.example",
        ("channels", "matrix", "allow_from"): [],
        ("channels", "email", "address"): "x@y",
        ("llm", "default_pool"): "main",
    }
    new = changed(BY_HAND, wanted, {("llm",): "models"})
    assert new.text == BY_HAND.replace("'https://a.example'", '"https://b.example"').replace(
        '        "#x:y": {policy: open}\n', '        "#x:y": {policy: open}\n      allow_from: []\n'
    ).replace("  email:\n", '  email:\n    address: "x@y"\n\n# models\nllm:\n  default_pool: main\n')


def test_what_cannot_be_edited_is_written_anew_and_told():
    """An alias of YAML stands for two places: one of them cannot change alone."""
    new = changed("a: &x {b: 1}\nc: *x  # words\n", {("c", "d"): 2}, {})
    assert said(new.text) == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}
    assert new.anew


def test_no_configuration_is_refused():
    """A list is not changed into something else."""
    with pytest.raises(ValueError, match="key: value"):
        changed("- a\n", {("a",): 1}, {})
    with pytest.raises(yaml.YAMLError):
        changed("a: [", {("a",): 1}, {})


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
    place = Place("127.0.0.1", 993, "tls")
    return Answers(
        owner=("@me:hs.test", "me@mail.test"),
        model=ModelOffer("openai/x", "openai", "", "sk-1"),
        matrix=MatrixAnswers("http://127.0.0.1:1", "@bot:hs.test", password),
        email=EmailAnswers("bot@mail.test", "bot", password, place, place, "self", ("mail.test",)),
        **more,
    )


@pytest.mark.parametrize("password", HOSTILE)
def test_hostile_passwords_arrive_and_stay_out_of_the_file(tmp_path, password):
    """What is written is proved by the real loader: the password it reads is the one that was given."""
    config = tmp_path / "squidbot.yaml"
    settings = put(plan(look(config, {}), answers(password)), {}, EPOCH)
    assert settings.channels.matrix.password.get_secret_value() == password
    assert settings.channels.email.password.get_secret_value() == password
    assert "${secret:matrix-password}" in config.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    again = plan(look(config, {}), answers(password))
    assert again.same
    assert again.text == config.read_text(encoding="utf-8")


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_answers_arrive_as_they_were_given(tmp_path, value):
    """Also what looks like a reference is only text, in the name for a login and in the name of a model."""
    given = answers()
    given = replace(
        given, email=replace(given.email, username=value), model=replace(given.model, model=f"openai/{value}")
    )
    config = tmp_path / "squidbot.yaml"
    settings = put(plan(look(config, {}), given), {"HOME": "/x"}, EPOCH)
    assert settings.channels.email.username == value
    assert settings.llm.models["assistant"].model == f"openai/{value}"
    assert plan(look(config, {}), given).same


def test_what_reads_the_same_by_a_reference_is_not_touched(tmp_path):
    """A value out of the environment or a literal password that says what was answered stays how it is written."""
    config = tmp_path / "squidbot.yaml"
    put(plan(look(config, {}), answers()), {}, EPOCH)
    text = config.read_text().replace('"${secret:matrix-password}"', "pw").replace('"@bot:hs.test"', "${ME}")
    config.write_text(text)
    config.chmod(0o600)
    environ = {"ME": "@bot:hs.test"}
    planned = plan(look(config, environ), answers())
    assert planned.same
    other = plan(look(config, environ), answers("other"))
    assert set(other.draft.secrets) == {"matrix-password", "email-password"}
    assert "REPLACES" in "".join(other.told)
    assert literal("${ME}") == "$${ME}"


def test_what_would_not_work_is_not_put_in_place(tmp_path):
    """An answer that the settings refuse changes nothing; neither the file nor a secret."""
    config = tmp_path / "squidbot.yaml"
    put(plan(look(config, {}), answers()), {}, EPOCH)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    bad = Answers(("@me:hs.test",), matrix=MatrixAnswers("ftp://x", "@bot:hs.test", "new"))
    with pytest.raises(Exception, match="nothing was written") as caught:
        put(plan(look(config, {}), bad), {}, EPOCH)
    assert caught.value.exit_code == 78
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_secret_that_would_be_hidden_is_refused(tmp_path):
    """Where the service manager hands over another secret of that name, ours would never be read."""
    handed = tmp_path / "handed"
    handed.mkdir()
    (handed / "matrix-password").write_text("other")
    config = tmp_path / "home" / "squidbot.yaml"
    with pytest.raises(Exception, match="comes from"):
        put(plan(look(config, {}), answers()), {"CREDENTIALS_DIRECTORY": str(handed)}, EPOCH)
    assert not config.exists()


def test_the_owners_addresses():
    """New ones come to the others, and one of the same channel replaces the first if none of them is known."""

    def aliases(old, *new):
        before = {"owner": {"aliases": old}}
        return draft(Answers(new), before, before).wanted.get(("owner", "aliases"), old)

    assert aliases([], "@a:b", "a@b.c") == ["@a:b", "a@b.c"]
    assert aliases(["@a:b", "@c:d"], "@a:b") == ["@a:b", "@c:d"]
    assert aliases(["@a:b", "@c:d"], "@e:f") == ["@e:f", "@c:d"]
    assert aliases(["@a:b", "@c:d"], "@c:d", "@e:f") == ["@a:b", "@c:d", "@e:f"]
    assert aliases([{"channel": "email", "address": "A@b.c"}], "a@b.c", "@a:b")[0]["address"] == "A@b.c"


def test_a_channel_is_switched_off_and_on_again(tmp_path):
    """Left out, its settings stay; named again, it is on."""
    config = tmp_path / "squidbot.yaml"
    put(plan(look(config, {}), answers()), {}, EPOCH)
    off = plan(look(config, {}), Answers(("@me:hs.test",), off=frozenset({"matrix"})))
    assert list(put(off, {}, EPOCH).channels.enabled()) == ["email"]
    assert list(put(plan(look(config, {}), answers()), {}, EPOCH).channels.enabled()) == ["matrix", "email"]


def test_the_first_of_several_accounts_is_meant(tmp_path):
    """A list of accounts stays one."""
    config = tmp_path / "squidbot.yaml"
    config.write_text(
        "channels:\n  matrix:\n  - {homeserver: http://x, user_id: '@a:b', password: a}\n"
        "  - {name: two, homeserver: http://y, user_id: '@c:d', password: b}\n"
    )
    config.chmod(0o600)
    put(plan(look(config, {}), answers()), {}, EPOCH)
    one, two = load_settings(config, environ={}).channels.matrix
    assert (one.user_id, two.user_id, two.name) == ("@bot:hs.test", "@c:d", "two")
    assert read_source(config, {}).data["channels"]["matrix"][0]["password"] == "pw"
