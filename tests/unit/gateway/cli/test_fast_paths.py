"""`squidbot status` and `squidbot --help` load little, and the short way tells the same as the long one."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from agent_core.storage.jsonl import JsonlMemory
from gateway.cli.fast_paths import StatusRequest, parse_status
from gateway.cli.output import called_as
from gateway.operations.service import Operations
from gateway.queue.sqlite.offline_status import work_at_rest
from gateway.queue.sqlite.store import SqliteWorkStore
from gateway.queue.states import InboxState, OutboxState
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.clock import EPOCH, LoopClock

ROOT = Path(__file__).resolve().parents[4]
# Each of these takes longer to load than a quarter of what the whole command may take (200 ms).
SLOW = {
    "pydantic",
    "cyclopts",
    "rich",
    "structlog",
    "anyio",
    "asyncio",
    "aiohttp",
    "litellm",
    "loguru",
    "nio",
}
OURS_SLOW = {
    "gateway.settings",
    "gateway.operations.service",
    "gateway.queue.sqlite.store",
    "agent_core.messages",
}
ROOM = SessionKey("matrix", "!room:hs.test")


def loaded_by(*arguments, home, code=None):
    """What is loaded when a command has ended, and its exit code."""
    script = """
        import json, sys
        sys.argv = ["squidbot", *sys.argv[1:]]
        from gateway.cli import main
        try:
            main()
        except SystemExit as end:
            sys.stdout.flush()
            print("\\n" + json.dumps([end.code, sorted(sys.modules)]), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "SQUIDBOT_HOME": str(home)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    ended, modules = json.loads(done.stderr.splitlines()[-1])
    assert ended == 0, done.stderr
    return set(modules), done.stdout


def slow(modules):
    return {name.partition(".")[0] for name in modules} & SLOW | modules & OURS_SLOW


async def make_store(database):
    """An empty store of today's version."""
    store = await SqliteWorkStore.open(database, clock=SystemClock())
    await store.aclose()


@pytest.fixture
def home(tmp_path):
    """A home that a daemon has used: a database, a configuration, and the copy of it that was good."""
    home = open_home(tmp_path / "h")
    home.root.chmod(0o700)
    anyio.run(make_store, home.database)
    for path in (home.config_file, home.last_good):
        path.write_text("channels: {}\n")
        path.chmod(0o600)
    return home


def test_help_loads_nothing_slow(home):
    """`squidbot --help` prints what was made beforehand."""
    modules, told = loaded_by("--help", home=home.root)
    assert not slow(modules)
    assert "status" in told


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_status_without_a_daemon_loads_nothing_slow(home, more):
    """No models, no event loop, no library of the command line; and it leaves nothing behind in the home."""
    before = sorted(path.name for path in home.root.iterdir())
    modules, told = loaded_by("status", *more, home=home.root)
    assert not slow(modules)
    assert "not running" in told or json.loads(told)["running"] is False
    assert sorted(path.name for path in home.root.iterdir()) == before


def test_status_of_a_daemon_loads_nothing_slow(home):
    """The answer comes through the control socket; a socket with a thread stands in for the daemon."""
    answer = '{"result": {"version": "7.7", "running": true, "work": {"inbox": {}, "outbox": {}}}}'
    script = f"""
        import fcntl, os, socket, sys, threading
        home = os.environ["SQUIDBOT_HOME"]
        lock = os.open(home, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = socket.socket(socket.AF_UNIX)
        server.bind(os.path.join(home, "run/control.sock"))
        server.listen()
        print("ready", flush=True)
        link, _ = server.accept()
        link.recv(4096)
        body = {answer!r}.encode()
        link.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
        link.recv(4096)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "SQUIDBOT_HOME": str(home.root)}, stdout=subprocess.PIPE, text=True,
    ) as standing_in:  # fmt: skip
        try:
            assert standing_in.stdout.readline() == "ready\n"
            modules, told = loaded_by("status", home=home.root)
        finally:
            standing_in.kill()
    assert not slow(modules)
    assert "squidbot 7.7: running" in told


def test_the_long_way_would_be_seen(home):
    """The control: what needs the whole command line is not so quick."""
    assert slow(loaded_by("status", "--verbose", home=home.root)[0]) >= {"cyclopts"}
    assert slow(loaded_by("inbox", "list", home=home.root)[0]) >= {"pydantic", "anyio", "gateway.settings"}


NO_MATTER_OF_SETTINGS = {
    "anyio",
    "aiohttp",
    "litellm",
    "loguru",
    "nio",
    "structlog",
    "aioimaplib",
    "aiosmtplib",
}


@pytest.mark.parametrize("command", [("config", "show"), ("config", "schema")])
def test_reading_the_configuration_loads_nobody_who_talks(home, command):
    """What clients of models, servers and logs are made of takes longer to load than all settings to be read."""
    modules, _ = loaded_by(*command, home=home.root)
    assert "gateway.settings" in modules
    assert not {name.partition(".")[0] for name in modules} & NO_MATTER_OF_SETTINGS


def test_a_configuration_can_be_named_in_the_environment(home, tmp_path):
    """All commands take $SQUIDBOT_CONFIG for --config; one that is not there is said."""
    other = tmp_path / "other.yaml"
    other.write_text("channels: {}\nagents: {heartbeat: {enabled: false}}\n")
    other.chmod(0o600)

    def shown(config, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments, "--home", str(home.root)],
            cwd=ROOT, env={**os.environ, "SQUIDBOT_CONFIG": config}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    told = json.loads(shown(str(other), "config", "show", "--json").stdout)
    assert (told["file"], told["settings"]["agents"]["heartbeat"]["enabled"]) == (str(other), False)
    assert json.loads(shown("", "config", "show", "--json").stdout)["file"] == str(home.config_file)
    for arguments in (("status",), ("run",), ("config", "show")):
        done = shown(str(tmp_path / "none.yaml"), *arguments)
        assert done.returncode == 78
        assert "none.yaml" in done.stderr


def test_a_configuration_that_has_changed_is_read(home):
    """It may be why no daemon runs, and what is wrong with it is said; an unchanged one costs nothing."""
    home.config_file.write_text("chanels: {}\n")
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "status", "--home", str(home.root)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "not running" in done.stdout
    assert "chanels" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status"], StatusRequest()),
        (["status", "--json", "--home", "/h"], StatusRequest(Path("/h"), as_json=True)),
        (["status", "--home=/h"], StatusRequest(Path("/h"))),
        (["status", "--home"], None),
        (["status", "--home", "--json"], None),
        (["status", "--home", "a", "--home", "b"], None),
        (["status", "--json", "--json"], None),
        (["status", "--json=true"], None),
        (["status", "--watch"], None),
        (["status", "--config", "c"], None),
        (["status", "-v"], None),
        (["status", "--help"], None),
        (["status", "x"], None),
        (["run"], None),
        ([], None),
    ],
)
def test_the_short_way_understands_only_what_is_plain(arguments, expected):
    """Everything else is for the whole command line, with its help and its errors."""
    assert parse_status(arguments) == expected


def fill(database, seed):
    """Rows in every state and with every kind of error, payload and apology, as chance has it."""
    chance = random.Random(seed)
    with closing(sqlite3.connect(database)) as db:
        count = chance.randrange(1, 30)
        for number in range(1, count + 1):
            db.execute(
                "INSERT INTO inbox (id, channel, account, native_id, session, kind, payload, state, turn, tail,"
                " error, accepted_at) VALUES (?, ?, 'a', ?, ?, 'message', ?, ?, ?, ?, ?, ?)",
                (
                    number, chance.choice(["matrix", "email"]), f"n{number}", str(ROOM), chance.choice([None, "{"]),
                    chance.choice(list(InboxState)).value, chance.choice([None, "t1", "t2"]),
                    chance.choice([None, *range(1, count + 1)]), chance.choice([None, "", "no model"]),
                    EPOCH.timestamp() + chance.randrange(-90, 90),
                ),
            )  # fmt: skip
        for number in range(chance.randrange(60)):
            channel = chance.choice(["matrix", "email"])
            whole = OutboundMessage(
                id=f"k{number}", channel=channel, account="a", session=ROOM, text="x", created_at=EPOCH,
                kind=chance.choice([OutboundKind.APOLOGY, OutboundKind.REPLY]),
            )  # fmt: skip
            db.execute(
                "INSERT INTO outbox (inbox_id, turn, key, channel, account, session, payload, state, error,"
                " created_at) VALUES (?, ?, ?, ?, 'a', ?, ?, ?, ?, ?)",
                (
                    chance.choice([None, *range(1, count + 1)]), chance.choice([None, "t1", "t2"]), f"k{number}",
                    channel, str(ROOM), chance.choice([None, "{", *[whole.model_dump_json()] * 4]),
                    chance.choice(list(OutboxState)).value,
                    chance.choice([None, "", "dropped", "left", "rejected: rude", "Rejected by them", "550 no"]),
                    EPOCH.timestamp() + chance.randrange(-90, 90),
                ),
            )  # fmt: skip
        for number in range(chance.randrange(3)):
            db.execute("INSERT INTO history_journal (session, line) VALUES (?, '{}')", (f"s{number}",))
        db.commit()


async def test_the_short_way_tells_the_same_as_the_long_one(tmp_path):
    """Counts, ages, what is stuck and why, what is given up and what is tried again, whatever is in the store."""
    clock = LoopClock()
    seen_stuck = seen_given_up = seen_trying = 0
    for seed in range(40):
        database = tmp_path / f"{seed}.db"
        store = await SqliteWorkStore.open(database, clock=clock)
        await store.aclose()
        fill(database, seed)
        now = clock.now()
        glanced = work_at_rest(database, now.timestamp())
        store = await SqliteWorkStore.open(database, clock=clock)
        report = await Operations(store, JsonlMemory(tmp_path, clock=clock)).status(reasons=True)
        await store.aclose()
        for name in ("oldest_unanswered_s", "oldest_unsent_s"):
            ages = glanced["work"].pop(name), report["work"].pop(name)
            assert ages == (None, None) or ages[0] == pytest.approx(ages[1], abs=1)
        assert glanced == {name: report[name] for name in ("work", "stuck", "given_up", "trying")}
        seen_stuck += len(glanced["stuck"])
        seen_given_up += glanced["given_up"]
        seen_trying += len(glanced["trying"])
    assert min(seen_stuck, seen_given_up, seen_trying) > 10


@pytest.mark.parametrize(
    "change",
    ["PRAGMA user_version = 1", "PRAGMA user_version = 99", "PRAGMA application_id = 1", "DROP TABLE outbox"],
)
def test_what_is_not_as_it_should_be_takes_the_long_way(tmp_path, change):
    """Older, newer, foreign or incomplete: the store itself brings it up to date or says what is wrong."""
    database = tmp_path / "gateway.db"
    anyio.run(make_store, database)
    assert work_at_rest(database) is not None
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute(change)
    assert work_at_rest(database) is None


def test_a_file_that_is_no_database_takes_the_long_way(tmp_path):
    """And is not touched."""
    (tmp_path / "gateway.db").write_bytes(b"garbage" * 1000)
    assert work_at_rest(tmp_path / "gateway.db") is None
    assert work_at_rest(tmp_path / "none.db") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gateway.db"]


def test_the_next_command_is_told_as_it_can_be_typed(tmp_path):
    """The bare name only where the shell finds this very program by it; otherwise the path, quoted if need be."""
    here, other = tmp_path / "my env" / "bin", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir(parents=True)
        (folder / "squidbot").write_text("#!/bin/sh\n")
        (folder / "squidbot").chmod(0o755)
    mine = str(here / "squidbot")
    assert called_as(mine, {"PATH": f"/usr/bin:{here}"}) == "squidbot"
    for path in ("/nowhere", f"{other}:{here}", ""):
        assert called_as(mine, {"PATH": path}) == f"'{mine}'"
    assert called_as(str(ROOT / "gateway" / "__main__.py"), {}).endswith(" -m gateway")
