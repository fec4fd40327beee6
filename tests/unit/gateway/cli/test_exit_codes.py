"""Exit codes as docs/commands.md lists them, and the sentence beside each, on a home folder at rest."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import anyio
import pytest

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home, holder_of
from tests.command_line import squidbot

CONFIG = """\
owner: {aliases: ["@a:hs.test", "a@mail.test"]}
channels:
  email: {address: bot@mail.test, username: bot, password: pw, imap: {host: h}, smtp: {host: h},
    trusted_authserv_ids: [h]}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("home")
    root.chmod(0o700)
    (root / "squidbot.yaml").write_text(CONFIG)
    (root / "squidbot.yaml").chmod(0o600)

    async def fill():
        await (await SqliteQueue.open(open_home(root).database, clock=SystemClock())).aclose()

    anyio.run(fill)
    return root


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("check --repair", 2, "--repair needs --data"),
        ("backup HERE/one.tar.gz --keep 2", 2, "--keep needs a folder"),
        ("backup HERE/many --keep 0", 2, "at least 1"),
        ("restore", 2, "name a backup, or give --finish"),
        ("restore HERE/one.tar.gz --finish", 2, "not both"),
        ("backup HERE/one.tar.gz --encrypt --passphrase-file HERE/none", 77, "none cannot be read: No such file"),
        ("inbox approve zzz", 2, "'zzz' is not a name"),
        ("send email:a@mail.test hello", 75, "email sends only while the daemon runs"),
        ("heartbeat now", 75, "no heartbeat is running"),
        ("matrix devices", 75, "only while the daemon runs"),
        ("email reset-breaker", 75, "only while the daemon runs"),
    ],
)  # fmt: skip
def test_a_refusal(home, tmp_path, words, code, said):
    """Nothing is made, and the reason is one sentence."""
    done = squidbot(home, *words.replace("HERE", str(tmp_path)).split())
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("did --since 2026-01-03T14:05", "no tool has done anything since 2026-01-03 14:05\n"),
        ("files history", "no file was changed\n"),
        ("files history notes.txt", "no change of notes.txt is recorded\n"),
        ("forget nobody@example.org --dry-run", "would be removed: nothing\n"),
    ],
)
def test_nothing_is_there(home, words, said):
    """What was looked for is named, so that a wrong name is noticed."""
    done = squidbot(home, *words.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_a_chat_without_a_daemon_uses_the_home(home):
    """Other commands end at once and name it: no daemon is starting for which they could wait."""
    command = [sys.executable, "-m", "gateway", "chat", "--home", str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as chat:
        while holder_of(Home(home)) != chat.pid:
            assert chat.poll() is None
            time.sleep(0.05)
        said = [squidbot(home, *words.split()) for words in ("status", "run", "forget owner --yes")]
        checked = squidbot(home, "check")
        chat.communicate(b"", timeout=60)
    why = f"`squidbot chat` (process {chat.pid}) uses {home} without a daemon; leave it with /quit, then try again"
    assert [(done.returncode, done.stdout, done.stderr) for done in said] == [
        (75, "", f"squidbot: {why}\n")
    ] * 3
    assert f"fail     daemon: {why}\n" in checked.stdout
    assert squidbot(home, "status").returncode == 0


def test_a_daemon_uses_the_home(home):
    """The control: it is not taken for a chat."""
    with hold_home(Home(home)):
        done = squidbot(home, "run")
    assert (done.returncode, "already runs on" in done.stderr) == (78, True)


@pytest.mark.parametrize("page", ["false", "true"])
def test_another_program_listens_there(tmp_path, page):
    """A daemon whose port is taken ends with a sentence, with the console and without."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "squidbot.yaml").write_text(
            f"gateway: {{http: {{listen: '{listen}', console: {page}}}}}\n"
        )
        (tmp_path / "squidbot.yaml").chmod(0o600)
        done = squidbot(tmp_path, "run")
    assert done.returncode == 74
    (last,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert last.startswith(f"squidbot: gateway.http.listen: {listen} cannot be used (")
