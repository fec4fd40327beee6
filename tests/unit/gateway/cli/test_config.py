"""`squidbot config`: what it shows, prints, keeps and puts back; and what commands say of a broken file."""

from __future__ import annotations

import json
import re
import stat
import time
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from gateway.errors import ConfigInvalid, NotFound
from gateway.observability.redaction import MASK, Redactor
from gateway.operations import render
from gateway.settings import load_settings
from gateway.settings.effective import effective, origins, shown_text
from gateway.settings.example import EXAMPLE
from gateway.settings.json_schema import config_schema
from gateway.settings.last_good import changes, keep_last_good, mask_lines, restore
from gateway.system.home import Home
from tests.command_line import ROOM, daemon, fill, squidbot

NOW = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)
SECRETS = ("hunter2-hunter2", "k3y-in-the-file", "pa55-of-the-env", "t0ken-further-down")
CONFIG = """\
owner: {aliases: ["@a:hs.test", "b@x.test"]}
llm:
  providers:
    p: {api_base: "http://u:${PASS}@h.test/v1", api_key: k3y-in-the-file}
  models:
    m: {provider: p, model: openai/x, extra: {token: t0ken-further-down, k: [hunter2-hunter2]}}
  pools: {main: [m]}
agents: {consolidation_threshold: 7}
channels:
  matrix:
    homeserver: "${SERVER}"
    user_id: "@bot:hs.test"
    password: "${file:pw}"
    allow_from:
      - "${WHO}"
"""
ENVIRON = {"PASS": SECRETS[2], "SERVER": "https://hs.test", "WHO": "@c:hs.test"}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "pw").write_text(f"{SECRETS[0]}\n")
    path = tmp_path / "squidbot.yaml"
    path.write_text(CONFIG)
    for each in (path, tmp_path / "pw"):
        each.chmod(0o600)
    return path


_CHANNEL = "channels: {matrix: {homeserver: 'http://127.0.0.1:9', user_id: '@a:b', password: x, allow_from: ['@c:d']}}\n"
_MODEL = """llm:
  providers: {p: {api_base: 'http://127.0.0.1:9/v1', api_key: x}}
  models: {m: {provider: p, model: openai/m}}
  pools: {main: [m]}
  default_pool: main
"""


class TestShown:
    def test_no_secret_is_shown(self, file):
        """Neither a key, nor a password of a file, nor one put together into an address, nor one further in."""
        settings = load_settings(file, environ=ENVIRON)
        for text in (shown_text(settings), json.dumps(effective(settings)), repr(origins(settings))):
            assert not any(secret in text for secret in SECRETS)
        assert effective(settings)["channels"]["matrix"]["password"] == MASK
        assert all(secret in settings.secrets() for secret in SECRETS[:3])  # they are there to be shown

    def test_what_is_no_secret_is_shown_also_from_the_environment(self, file):
        """An address is none; but the value of a variable that is also a password is."""
        shown = effective(load_settings(file, environ=ENVIRON))
        assert shown["channels"]["matrix"]["homeserver"] == "https://hs.test"
        assert shown["channels"]["matrix"]["allow_from"] == ["@c:hs.test"]
        file.write_text(CONFIG.replace("k3y-in-the-file", "https://hs.test"))
        shown = effective(load_settings(file, environ=ENVIRON))
        assert shown["channels"]["matrix"]["homeserver"] == MASK

    def test_each_value_says_where_it_is_from(self, file):
        """The line, and the variable or file behind a reference; a default says nothing."""
        settings = load_settings(file, environ=ENVIRON)
        text = shown_text(settings)
        assert "consolidation_threshold: 7  # line 8" in text
        assert "homeserver: https://hs.test  # env SERVER, line 11" in text
        assert "password: '***'  # file pw, line 13" in text
        assert re.search(r"(?m)^  keep_recent_ratio: 0.2$", text)
        assert origins(settings)["channels.matrix.allow_from[0]"].name == "WHO"

    def test_what_is_shown_is_yaml_that_says_the_same(self, file, tmp_path):
        """Without its remarks it could be loaded: nothing is lost or turned into something else."""
        file.write_text("agents: {consolidation_threshold: 7}\nskills: {always: ['yes', 'a: b', '#x']}\n")
        again = tmp_path / "again.yaml"
        again.write_text(shown_text(load_settings(file, environ={})))
        assert load_settings(again, environ={}).model_dump() == load_settings(file, environ={}).model_dump()


class TestLastGood:
    @pytest.fixture
    def kept(self, file, tmp_path):
        place = tmp_path / "state" / "last-good.yaml"
        assert keep_last_good(load_settings(file, environ=ENVIRON), place) is True
        return place

    def test_it_is_the_file_as_it_stands(self, file, kept):
        """For its owner alone, with references instead of what they mean; written only when it is another one."""
        assert kept.read_text() == CONFIG
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert SECRETS[2] not in kept.read_text()
        assert keep_last_good(load_settings(file, environ=ENVIRON), kept) is False

    def test_changes_are_told_without_secrets(self, file, kept):
        """Each changed line with its number; a changed password is seen to have changed, not what it is."""
        now = CONFIG.replace("threshold: 7", "threshold: seven").replace("k3y-in-the-file", "n3w-k3y-n3w")
        file.write_text(now)
        told = changes(file, kept)
        assert "+ line 8: agents: {consolidation_threshold: seven}" in told
        assert [line for line in told if "api_key" in line] == [
            f'{sign} line 4:     p: {{api_base: "http://u:{MASK}@h.test/v1", api_key: {MASK}' for sign in "-+"
        ] or all(MASK in line for line in told if "api_key" in line)
        assert not any(secret in line for line in told for secret in (*SECRETS, "n3w-k3y-n3w"))

    def test_a_file_that_is_no_yaml_shows_no_secret_either(self, file, kept):
        """Nothing can be read, so whatever stands below a telling key is masked, on several lines too."""
        file.write_text('x: [\n  password: "open\n    sesame"\napi_key: |\n  mine alone\n  and more\nz: 1\n')
        told = "\n".join(changes(file, kept))
        for secret in ("open\n", '"open', "sesame", "mine", "alone", "and more"):
            assert secret not in told
        assert "+ line 7: z: 1" in told

    def test_masking_leaves_what_is_no_secret(self):
        """References, numbers of tokens and ordinary lines stay, or a diff would tell nothing."""
        lines = [
            "tokens_per_day: 500",
            "password: ${secret:pw}",
            "a: b  # password: old-one",
            "api_key:  # none",
        ]
        shown = mask_lines(lines, Redactor(()))
        assert shown[:2] == lines[:2]
        assert "old-one" not in shown[2]
        assert shown[3] == lines[3]

    def test_going_back_keeps_what_was_there(self, file, kept):
        """The broken file gets another name; the good one is in its place, for its owner alone."""
        file.write_text("broken: [")
        done = restore(file, kept, now=NOW)
        assert file.read_text() == CONFIG
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert done.broken.read_text() == "broken: ["
        assert restore(file, kept, now=NOW).broken is None  # nothing to do
        file.write_text("broken again")
        assert restore(file, kept, now=NOW).broken != done.broken

    def test_what_does_not_load_any_more_is_not_put_back(self, file, kept, monkeypatch):
        """Its secret is gone: the present file stays, and it says so."""
        for name in ENVIRON:
            monkeypatch.setenv(name, ENVIRON[name])
        (file.parent / "pw").unlink()
        file.write_text("broken: [")
        with pytest.raises(ConfigInvalid, match="no longer works either"):
            restore(file, kept, now=NOW)
        assert file.read_text() == "broken: ["
        assert sorted(path.name for path in file.parent.iterdir()) == ["squidbot.yaml", "state"]

    def test_without_one_there_is_nothing_to_go_back_to(self, file, tmp_path):
        """Said in words."""
        with pytest.raises(NotFound, match="no last good configuration"):
            restore(file, tmp_path / "none.yaml", now=NOW)
        assert changes(file, tmp_path / "none.yaml") == []

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch):
        for name, value in ENVIRON.items():
            monkeypatch.setenv(name, value)


class TestCommands:
    @pytest.fixture
    def home(self, tmp_path):
        root = tmp_path / "h"
        root.mkdir(mode=0o700)
        (root / "state").mkdir()
        (root / "squidbot.yaml").write_text("owner: {aliases: ['@a:hs.test']}\n")
        (root / "squidbot.yaml").chmod(0o600)
        return root

    @pytest.mark.parametrize(
        ("text", "missing"),
        [
            *((text, ["no channel", "demo model"]) for text in ("", "# nothing yet\n", "{}\n", "gateway:\n")),
            (_CHANNEL, ["demo model"]),
            (_MODEL, ["no channel"]),
            (_CHANNEL + _MODEL, []),
        ],
    )
    def test_check_says_what_nobody_can_use_yet(self, home, text, missing):
        """A file without channels or models starts and answers nobody, or nothing of worth."""
        (home / "squidbot.yaml").write_text(text)
        done = squidbot(home, "config", "check")
        assert done.returncode == 0
        assert [each for each in ("no channel", "demo model") if each in done.stdout] == missing
        assert ("is fine" in done.stdout, "squidbot init" in done.stdout) == (not missing, bool(missing))

    def test_check_says_everything_and_ends_with_78(self, home):
        """All problems with their places, what has changed since it worked, and the way back, which works."""
        good = home / "squidbot.yaml"
        keep_last_good(load_settings(good), Home(home).last_good)
        assert squidbot(home, "config", "check").returncode == 0
        good.write_text("owner: {alises: []}\ngateway: {x: 1}\n")
        done = squidbot(home, "config", "check")
        assert done.returncode == 78
        assert "2 problems" in done.stdout
        assert 'line 1, owner.alises: unknown key; did you mean "aliases"?' in done.stdout
        assert "+ line 2: gateway: {x: 1}" in done.stdout
        assert json.loads(squidbot(home, "config", "check", "--json").stdout)["changed_since_good"]
        assert "config restore" in done.stdout
        assert squidbot(home, "config", "restore", "--yes").returncode == 0
        assert squidbot(home, "config", "check").returncode == 0

    def test_without_a_last_good_one_nobody_is_asked(self, home):
        """There is nothing to agree to."""
        done = squidbot(home, "config", "restore")
        assert done.returncode == 1
        assert "no last good configuration" in done.stderr
        assert "--yes" not in done.stderr

    def test_another_file_can_be_checked(self, home):
        """As for a file that is not in its place yet."""
        (home / "other.yaml").write_text("x: 1")
        assert squidbot(home, "config", "check", str(home / "other.yaml")).returncode == 78
        assert squidbot(home, "config", "check", str(EXAMPLE)).returncode == 0

    def test_what_is_printed_can_be_used(self, home):
        """Schema and effective configuration are JSON, the example is that of the repository."""
        assert json.loads(squidbot(home, "config", "schema").stdout) == config_schema()
        assert squidbot(home, "config", "example").stdout == EXAMPLE.read_text(encoding="utf-8")
        shown = json.loads(squidbot(home, "config", "show", "--json").stdout)
        assert shown["settings"]["owner"]["aliases"] == [{"channel": "matrix", "address": "@a:hs.test"}]
        assert shown["origins"]["owner.aliases[0]"]["line"] == 1

    @pytest.mark.parametrize("command", [("status",), ("sessions", "list"), ("inbox", "list"), ("usage",)])
    def test_a_command_that_can_go_on_says_that_it_guesses(self, home, command):
        """The answer stands alone on stdout; without the trouble nothing is said."""
        (home / "gateway.db").touch()
        fine = squidbot(home, *command, "--json")
        assert (fine.returncode, fine.stderr) == (0, "")
        (home / "squidbot.yaml").write_text("owner: {alises: []}\n")
        done = squidbot(home, *command, "--json")
        assert done.returncode == 0
        assert "cannot be read" in done.stderr
        assert "owner.alises" in done.stderr
        assert json.loads(done.stdout)

    @pytest.mark.parametrize("command", [("memory", "list"), ("cron", "list"), ("config", "show")])
    def test_a_command_that_cannot_ends_with_78(self, home, command):
        """Where the workspace or the time zone decides, no guess is made."""
        (home / "gateway.db").touch()
        (home / "squidbot.yaml").write_text("owner: {alises: []}\n")
        done = squidbot(home, *command)
        assert done.returncode == 78
        assert "owner.alises" in done.stderr

    def test_logs_say_it_too(self, home):
        """They are wanted just when something is broken."""
        (home / "logs").mkdir()
        (home / "logs" / "a.log").write_text('{"event": "gateway.started", "level": "info"}\n')
        (home / "squidbot.yaml").write_text("owner: {alises: []}\n")
        done = squidbot(home, "logs")
        assert (done.returncode, "gateway.started" in done.stdout) == (0, True)
        assert "cannot be read" in done.stderr

    def test_a_named_file_must_be_there(self, home):
        """No other configuration is guessed for one that somebody named."""
        (home / "gateway.db").touch()
        done = squidbot(home, "status", "--config", str(home / "nothing.yaml"))
        assert done.returncode == 78
        assert "no such file" in done.stderr


async def damage(home):
    await fill(home)
    history = next((home / "sessions").glob("*.jsonl"))
    with history.open("a") as lines:
        lines.write("this is no line\n")
    return str(ROOM)


class TestQuiet:
    @pytest.fixture
    def damaged(self, tmp_path):
        import anyio

        return tmp_path, anyio.run(damage, tmp_path)

    def test_plain_commands_show_no_log_lines(self, damaged):
        """A skipped line is a warning of the library, and no part of an answer; -v and $SQUIDBOT_LOG show it."""
        home, session = damaged
        done = squidbot(home, "sessions", "show", session)
        assert (done.returncode, done.stderr) == (0, "")
        for shown in (
            squidbot(home, "sessions", "show", session, "-v"),
            squidbot(home, "sessions", "show", session, environ={"SQUIDBOT_LOG": "warning"}),
        ):
            assert "history.line_skipped" in shown.stderr
            assert "history.line_skipped" not in shown.stdout


class TestDaemon:
    def test_a_start_keeps_the_configuration_and_a_broken_one_is_refused(self, tmp_path):
        """What it started with is kept, as it stood; with a broken file it does not start, and the copy stays."""
        root = tmp_path / "h"
        root.mkdir(mode=0o700)
        kept = Home(root).last_good
        with daemon(root):
            give_up_at = time.monotonic() + 30
            while not kept.exists():
                assert time.monotonic() < give_up_at
                time.sleep(0.02)
            good = (root / "squidbot.yaml").read_text()
            assert kept.read_text() == good
            assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        (root / "squidbot.yaml").write_text("owner: {alises: []}\n")
        assert squidbot(root, "run").returncode == 78
        assert kept.read_text() == good

    @pytest.mark.parametrize("with_secrets", [False, True])
    def test_a_backup_has_it_only_with_secrets(self, tmp_path, with_secrets):
        """It may hold secrets that stand in the configuration; those are taken out of that, but not out of it."""
        from gateway.operations.backup.contents import BackupPart, BackupSelection

        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "last-good.yaml").write_text("secret")
        names = {
            one.name for one in BackupSelection(tmp_path, tmp_path / "w", with_secrets).files(BackupPart.LATE)
        }
        assert ("state/last-good.yaml" in names) is with_secrets


class TestStatus:
    CHANNEL: ClassVar = {
        "since": "2026-01-03T14:00:00+00:00", "detail": "", "last_error": "no route to the server",
        "last_error_at": "2026-01-03T13:00:00+00:00", "heard_at": "2026-01-03T14:05:00+00:00",
    }  # fmt: skip

    def shown(self, state):
        report = {
            "version": "1", "running": True, "channels": {"email": {**self.CHANNEL, "state": state}},
            "work": {"inbox": {}, "outbox": {}}, "versions": {"nio": "0.26"},
        }  # fmt: skip
        return render.status(report)

    def test_an_error_that_is_over_is_told_as_such(self):
        """A channel that is up has no error beside it: that is a line of its own, with its time."""
        up = next(line for line in self.shown("up").splitlines() if " up " in line)
        assert "no route" not in up
        assert "last error, 2026-01-03" in self.shown("up")
        down = next(line for line in self.shown("down").splitlines() if " down " in line)
        assert "no route to the server" in down
        assert "last error" not in self.shown("down")

    def test_it_says_when_the_server_was_heard_of_and_the_versions(self):
        """Since when it is connected, when it last answered or called, and what it is made of."""
        assert "since 2026-01-03" in self.shown("up")
        assert "heard from at 2026-01-03" in self.shown("up")
        assert "versions   nio 0.26" in self.shown("up")


def test_no_problem_of_a_file_reaches_the_terminal_raw(tmp_path):
    """Names and values that recolour, retitle or clear a screen are shown as escapes."""
    odd = r'"\e[31m\e]0;x\a\x9b2J"'
    path = tmp_path / "squidbot.yaml"
    for text in (
        f"{odd}: 1\nllm: {{models: {{{odd}: {{model: {odd}}}}}}}\nowner: {{aliases: [{odd}]}}\ntools: {{{odd}: {odd}}}\n",
        f"timezone: {odd}\nagents: {{consolidation_threshold: {odd}}}\nchannels: {{email: {{address: {odd}}}}}\n",
        "timezone: \x1b[31m\n",
        f"a: &a [*{odd}\n",
    ):
        path.write_text(text)
        for more in ((), ("--json",)):
            done = squidbot(tmp_path, "config", "check", "--config", str(path), *more)
            assert done.returncode
            said = done.stdout + done.stderr
            assert said.strip()
            assert all(each.isprintable() or each == "\n" for each in said), said
