"""A database that cannot be the queue: one plain sentence, the exit code that says what to do, nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core.messages import Sender
from gateway.app import build
from gateway.errors import ConfigInvalid
from gateway.settings import Settings
from gateway.store.lease import DAEMON, LeaseTaken
from gateway.store.opening import opened_queue
from gateway.store.postgres.postgres_connection import connect
from gateway.store.postgres.postgres_queue import PostgresQueue, migrate
from gateway.store.state_key import StateKey
from gateway.store.stores import StoreUnavailable, StoreUnusable
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.daemon import Daemon
from tests.integration.test_postgres_faults import said
from tests.postgres_server import PASSWORD, ROLE, PostgresServer

pytestmark = [pytest.mark.integration]

ROOT = Path(__file__).resolve().parents[2]
TEMPORARY, CONFIGURATION = 75, 78


def squidbot(home: Path, url: str, *command: str, path: str = "") -> tuple[int, str]:
    """Run a command on a home whose queue is there; the exit code and what it says."""
    home.mkdir(mode=0o700, exist_ok=True)
    config = home / "squidbot.yaml"
    config.touch(mode=0o600)
    config.write_text(f'gateway: {{store: "{url}"}}\n')
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *command, "--home", str(home)],
        cwd=home,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT))))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stderr + done.stdout


def content(server: PostgresServer, database: str) -> list[tuple[str, str]]:
    """All that a database has of tables and the like, with what is in the one that says the version."""
    with server.admin(database) as db:
        found = db.execute(
            "SELECT nspname || '.' || relname, relkind::text FROM pg_class JOIN pg_namespace AS n"
            " ON n.oid = relnamespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
            " ORDER BY 1"
        ).fetchall()
        if ("squidbot.schema", "r") in found:
            found += db.execute("SELECT 'version', version::text FROM squidbot.schema").fetchall()
        return found


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


def _nothing(server: PostgresServer, database: str) -> str:
    return server.url(database)


def _other_schema(server: PostgresServer, database: str) -> str:
    with server.admin(database) as db:
        db.execute("CREATE SCHEMA squidbot; CREATE TABLE squidbot.inbox (x INT)")
        db.execute("GRANT USAGE ON SCHEMA squidbot TO squidbot")
    return server.url(database)


def _version(server: PostgresServer, database: str, change: str) -> str:
    migrate(server.url(database))
    with server.admin(database) as db:
        db.execute(f"UPDATE squidbot.schema SET version = version {change}")
    return server.url(database)


def _later(server: PostgresServer, database: str) -> str:
    return _version(server, database, "+ 1")


def _earlier(server: PostgresServer, database: str) -> str:
    return _version(server, database, "- 1")


def _other_encoding(server: PostgresServer, database: str) -> str:
    with server.admin() as db:
        db.execute(f"DROP DATABASE {database}")
        db.execute(
            f"CREATE DATABASE {database} OWNER squidbot TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        )
    return server.url(database)


CASES = {
    "no tables": (_nothing, CONFIGURATION, "has no tables of squidbot yet. `squidbot migrate` makes them."),
    "not ours": (_other_schema, CONFIGURATION, "not one that squidbot has made"),
    "later": (_later, CONFIGURATION, "tables of a later version of squidbot"),
    "earlier": (_earlier, CONFIGURATION, "tables from before the first release"),
    "encoding": (_other_encoding, CONFIGURATION, "needs UTF8"),
    "no such database": (
        lambda server, _: server.url("nowhere"), CONFIGURATION, 'database "nowhere" does not exist',
    ),
    "no such role": (
        lambda server, database: server.url(database, user="nobody-here"),
        CONFIGURATION,
        "password authentication failed",
    ),
    "wrong password": (
        lambda server, database: server.url(database, password="wrong-password"),
        CONFIGURATION,
        "password authentication failed",
    ),
    "nobody listens": (lambda server, database: server.url(database, port=9), TEMPORARY, "cannot be reached"),
    "broken URL": (
        lambda *_: "postgresql://host/database?nonsense=1", CONFIGURATION, "no address of a PostgreSQL database",
    ),
    "no such host": (
        lambda *_: "postgresql://squidbot:x@no-host.invalid/database", TEMPORARY, "failed to resolve host",
    ),
}  # fmt: skip


async def opened(url: str) -> tuple[int, str]:
    """Open the queue that is there, as a start does; the exit code and what the command line says."""
    try:
        queue = await opened_queue(Path("/nowhere/gateway.db"), url, clock=SystemClock())
    except (ConfigInvalid, StoreUnavailable) as error:
        return getattr(error, "exit_code", TEMPORARY), str(error)
    await queue.aclose()
    return 0, ""


@pytest.mark.parametrize("case", CASES)
async def test_a_start_is_refused_in_one_sentence(postgres: PostgresServer, database, case):
    """What is wrong is said, without the password, and nothing is touched."""
    prepare, code, words = CASES[case]
    url = prepare(postgres, database)
    before = content(postgres, database)
    found, told = await opened(url)
    assert found == code, told
    assert words in told
    assert "\n" not in told and PASSWORD not in told and "wrong-password" not in told
    assert content(postgres, database) == before


async def test_what_is_prepared_is_opened(postgres: PostgresServer, database):
    """The control."""
    migrate(postgres.url(database))
    assert await opened(postgres.url(database)) == (0, "")


@pytest.mark.parametrize(
    ("case", "words"), [("no tables", "`squidbot migrate`"), ("no URL", "postgresql://")]
)
def test_the_daemon_ends_with_the_code_of_the_configuration(postgres, database, tmp_path, case, words):
    url = postgres.url(database) if case == "no tables" else "mysql://host/database"
    code, told = squidbot(tmp_path / "home", url, "run")
    assert (code, words in told, "Traceback" in told) == (CONFIGURATION, True, False), told


@pytest.fixture
def replica(postgres: PostgresServer, database) -> Iterator[PostgresServer]:
    migrate(postgres.url(database))
    with PostgresServer.replica_of(postgres) as replica:
        yield replica


async def test_a_replica_is_waited_for(replica: PostgresServer, database):
    """It may be promoted at any moment, so the service manager is told to try again."""
    found, told = await opened(replica.url(database))
    assert (found, "takes no writes" in told) == (TEMPORARY, True), told
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        migrate(replica.url(database))


def test_of_two_hosts_the_one_that_takes_writes_is_used(
    postgres: PostgresServer, replica: PostgresServer, database: str
):
    """Although the replica is named first. The control takes what it reaches first."""
    hosts = f"127.0.0.1:{replica.port},127.0.0.1:{postgres.port}"
    url = f"postgresql://{ROLE}:{PASSWORD}@{hosts}/{database}"
    for wished, is_replica in (("", False), ("?target_session_attrs=any", True)):
        with connect(url + wished) as db:
            assert db.execute("SELECT pg_is_in_recovery()").fetchone() == (is_replica,)


def test_migrate_makes_tables_once_and_only_where_it_may(postgres: PostgresServer, database):
    """What it did is said; what is of a later version or of somebody else is left alone."""
    url = postgres.url(database)
    assert "has squidbot's tables now" in migrate(url)
    assert "squidbot.inbox" in {name for name, _ in content(postgres, database)}
    before = content(postgres, database)
    assert "nothing to do" in migrate(url)
    assert content(postgres, database) == before
    _version(postgres, database, "+ 1")
    with pytest.raises(StoreUnusable, match="later version"):
        migrate(url)
    other = postgres.new_database()
    with postgres.admin(other) as db:
        db.execute("CREATE ROLE guest LOGIN PASSWORD 'x'")
    with pytest.raises(StoreUnusable, match="may not make tables"):
        migrate(postgres.url(other, user="guest", password="x"))
    assert content(postgres, other) == []


BESIDE_A_DAEMON = {
    "no rights": (CONFIGURATION, "may not work with squidbot's tables"),
    "reads only": (CONFIGURATION, "may not work with squidbot's tables"),
    "two clusters": (CONFIGURATION, "encrypted with another state key"),
    "later": (CONFIGURATION, "tables of a later version of squidbot"),
    "earlier": (CONFIGURATION, "tables from before the first release"),
    "no such role": (CONFIGURATION, "password authentication failed"),
    "replica": (TEMPORARY, "takes no writes"),
}
KEY, OTHER_KEY = "a-state-key-of-the-tests", "another-state-key-of-the-tests"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_second_daemon_is_refused_and_the_first_goes_on(
    postgres: PostgresServer, replica: PostgresServer, database: str, tmp_path: Path
) -> None:
    """
    Each in one sentence; it leaves no lease, and nothing is changed. The control at the end is one that may.

    Two clusters on one database are told apart by the state key.
    """
    url = postgres.url(database)
    refused: dict[str, tuple[int, str]] = {}

    def settings(where: str, key: str = KEY) -> dict[str, Any]:
        return {"gateway": {"store": where, "state_key": key}}

    def leases() -> list[tuple[str, ...]]:
        with postgres.admin(database) as db:
            return db.execute(
                "SELECT name, holder FROM squidbot.all_leases WHERE holder IS NOT NULL ORDER BY 1"
            ).fetchall()

    def second(case: str, where: str, key: str = KEY) -> None:
        with Daemon(tmp_path / case, settings(where, key)) as daemon:
            daemon.start()
            refused[case] = (daemon.ended(within_s=100), daemon.log())

    with Daemon(tmp_path / "first", settings(url)) as first:
        first.up(within_s=100)
        first.wait_until(lambda: len(leases()) == 2)  # the home's, and what shows its machine
        before, held = content(postgres, database), leases()
        assert sum(name == DAEMON for name, _ in held) == 1
        second("two clusters", url, OTHER_KEY)
        second("no such role", postgres.url(database, user="nobody-here"))
        second("replica", replica.url(database))
        with postgres.admin(database) as db:
            db.execute("DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN PASSWORD 'x'")
        second("no rights", postgres.url(database, user="nobody_much", password="x"))
        with postgres.admin(database) as db:
            db.execute("GRANT USAGE ON SCHEMA squidbot TO nobody_much")
            db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA squidbot TO nobody_much")
        second("reads only", postgres.url(database, user="nobody_much", password="x"))
        for case, by in (("later", "+ 1"), ("earlier", "- 1")):
            with postgres.admin(database) as db:
                db.execute(f"UPDATE squidbot.schema SET version = version {by}, oldest = oldest {by}")
                second(case, url)
                db.execute(f"UPDATE squidbot.schema SET version = version - ({by}), oldest = oldest - ({by})")
        assert (content(postgres, database), leases()) == (before, held)
        for case, (code, words) in BESIDE_A_DAEMON.items():
            found, told = refused[case]
            assert (found, words in told, "Traceback" in told) == (code, True, False), (case, told)
            assert PASSWORD not in told and KEY not in told and OTHER_KEY not in told
        assert first.asked("/readyz")[1]["ready"]
        with Daemon(tmp_path / "third", settings(url)) as third:
            third.up(within_s=100)
            assert sum(name.startswith("machine:") for name, _ in leases()) == 2
            third.terminate()
            assert third.ended() == 0


async def test_a_wrong_state_key_is_refused_before_anything_is_taken(
    postgres: PostgresServer, tmp_path: Path
):
    """With the right key it would stand by: somebody has the lease."""
    url = postgres.with_tables()

    def settings_with(key: str) -> Settings:
        return Settings.model_validate({"gateway": {"store": url, "state_key": key}})

    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        state = queue.account_state(StateKey(KEY, tmp_path / "state-key"))
        state.open()
        state.close()
        assert await queue.maintenance.lease(DAEMON, holder="somebody", ttl_s=600)
        with pytest.raises(ConfigInvalid, match="another state key"):
            await build(settings_with(OTHER_KEY), open_home(tmp_path / "one"))
        built = await build(settings_with(KEY), open_home(tmp_path / "two"))
        with pytest.raises(LeaseTaken, match="works on"):
            await built.take_lease()


EVERY = "SELECT, INSERT, UPDATE, DELETE"
RIGHTS = {
    "reads only": ("GRANT SELECT ON ALL TABLES IN SCHEMA squidbot TO {0}", "account_document, account_file"),
    "leases only": (
        "GRANT {1} ON squidbot.leases, squidbot.all_leases TO {0}; GRANT SELECT ON squidbot.schema, squidbot.all_meta TO {0}",
        "account_document",
    ),
    "cannot write the inbox": (
        "GRANT {1} ON ALL TABLES IN SCHEMA squidbot TO {0}; REVOKE INSERT ON squidbot.inbox FROM {0}",
        "not change, inbox.",
    ),
    "no histories": (
        "GRANT {1} ON ALL TABLES IN SCHEMA squidbot TO {0}; REVOKE ALL ON squidbot.history FROM {0}",
        "not change, history.",
    ),
    "deletes nothing": (
        "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA squidbot TO {0}", "account_document"
    ),
}  # fmt: skip


@pytest.mark.parametrize("rights", RIGHTS)
def test_a_role_that_lacks_a_right_is_told_which(
    postgres: PostgresServer, database: str, tmp_path: Path, rights: str
):
    """By the daemon, before it takes or changes anything; the control is the role that owns the tables."""
    migrate(postgres.url(database))
    grants, words = RIGHTS[rights]
    role = f"lacks_{database}"
    with postgres.admin(database) as db:
        db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA squidbot TO {role}")
        db.execute(grants.format(role, EVERY))
        before = counted(db)
    url = postgres.url(database, user=role, password="x")
    code, told = squidbot(tmp_path / "home", url, "run")
    assert (code, "may not work with squidbot's tables" in told) == (CONFIGURATION, True), told
    assert words in told
    assert "Traceback" not in told
    with postgres.admin(database) as db:
        assert counted(db) == before


def counted(db: psycopg.Connection) -> dict[str, int]:
    """How many rows each table of ours has."""
    names = db.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'squidbot'::regnamespace AND relkind = 'r'"
    )
    return {
        name: db.execute(f"SELECT count(*) FROM squidbot.{name}").fetchone()[0]  # type: ignore[index]
        for (name,) in names.fetchall()
    }


async def test_a_role_that_owns_nothing_but_may_do_all_works_also_if_it_may_tell_nobody(
    postgres: PostgresServer, database: str, tmp_path: Path
):
    """It makes no tables and needs no right to. What others are not told they find by themselves."""
    migrate(postgres.url(database))
    role = f"may_{database}"
    with postgres.admin(database) as db:
        db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA squidbot TO {role}")
        db.execute(f"GRANT {EVERY} ON ALL TABLES IN SCHEMA squidbot TO {role}")
        db.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
    url = postgres.url(database, user=role, password="x")
    daemon = Daemon(tmp_path / "home", {"gateway": {"store": url}})
    with daemon:
        daemon.up()
        daemon.terminate()
        assert daemon.ended() == 0, daemon.log()[-3000:]
        assert "Traceback" not in daemon.log()
    with postgres.admin(database) as db:
        left = db.execute("SELECT count(*) FROM squidbot.all_leases WHERE name LIKE 'machine:%'").fetchone()
    assert left == (0,)
    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        await said(queue, "m1", "hello", Sender(address="ann"))
        [(session, _)] = await queue.turns.open_sessions()
        assert await queue.turns.claim(session) is not None


MISTYPED = {
    "percent": "postgresql://u:{0}%zz{1}@127.0.0.1/database",
    "blank": "postgresql://u:{0} {1}@127.0.0.1/database",
    "slash": "postgresql://u:{0}/{1}@127.0.0.1/database",
    "digits and slash": "postgresql://u:12345/{0}{1}@127.0.0.1/database",
    "at": "postgresql://u:{0}@{1}@127.0.0.1/database",
    "bracket": "postgresql://u:{0}[{1}@127.0.0.1:x/database",
    "in the query": "postgresql://127.0.0.1/database?password={0}%zz{1}",
    "in the query, ampersand": "postgresql://127.0.0.1/database?password={0}&{1}",
}


def test_a_misspelt_parameter_is_named_as_it_is_meant(tmp_path):
    """The control is a sign of the password, which is told as before."""
    url = "postgresql://u:secret@127.0.0.1/database?sslmod=verify-full"
    code, told = squidbot(tmp_path / "home", url, "migrate")
    assert code == CONFIGURATION and "Did you mean sslmode?" in told and "%25" not in told, told
    code, told = squidbot(tmp_path / "home", MISTYPED["at"].format("a", "b"), "migrate")
    assert code == CONFIGURATION and "%25" in told, told


@pytest.mark.parametrize("kind", MISTYPED)
@pytest.mark.parametrize("command", ["run", "status", "export eve@example.org", "migrate"])
def test_a_mistyped_url_shows_no_part_of_the_password(tmp_path, kind, command):
    """Not on stdout or stderr, nor in a file of the home; the driver's own words quote it."""
    url = MISTYPED[kind].format("hunterhare", "squirreltail")
    code, told = squidbot(tmp_path / "home", url, *command.split())
    config = tmp_path / "home" / "squidbot.yaml"
    kept = "".join(
        path.read_text(errors="replace")
        for path in (tmp_path / "home").rglob("*")
        if path.is_file() and path != config
    )
    assert (code, "no address of a PostgreSQL database" in told) == (CONFIGURATION, True), told
    assert "Traceback" not in told and told.count("\n") <= 2, told
    for part in ("hunterhare", "squirreltail", "12345"):
        assert part not in told + kept, told


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql://u:{0}@h/d", "hunter2/hare"),
        ("postgresql://u:{0}@h/d", "hunter2@hare"),
        ("postgresql://u:{0}@h/d", "hunter2#hare"),
        ("postgresql://u:{0}@h/d", "hunter2?hare"),
        ("postgresql://u:{0}@h/d", "hunter2[hare"),
        ("postgresql://u:{0}@h/d?user=a@b", "hunter2-hare"),
        ("postgresql://h/d?sslmode=require&password={0}", "hunter2-hare"),
        ("postgresql://h/d?sslpassword={0}&sslmode=require", "hunter2-hare"),
    ],
)
def test_the_password_of_the_url_is_a_secret_for_the_log(url, secret):
    settings = Settings.model_validate({"gateway": {"store": url.format(secret)}})
    assert secret in settings.secrets()
    assert {"h", "d", "u"}.isdisjoint(settings.secrets())


@pytest.mark.parametrize("command", ["forget --yes eve@example.org", "export eve@example.org"])
def test_the_commands_about_a_person_say_what_a_start_says(
    postgres: PostgresServer, database, tmp_path, command
):
    """No tables: the configuration's code. The server is away: try again."""
    code, told = squidbot(tmp_path / "home", postgres.url(database), *command.split())
    assert (code, "`squidbot migrate` makes them" in told) == (CONFIGURATION, True), told
    code, told = squidbot(tmp_path / "home", postgres.url(database, port=9), *command.split())
    assert (code, "cannot be reached" in told, "Traceback" in told) == (TEMPORARY, True, False), told


@pytest.mark.parametrize(
    "command", ["forget --yes eve@example.org", "export eve@example.org", "status", "run"]
)
def test_without_the_driver_the_extra_is_named(tmp_path, command):
    blocked = tmp_path / "blocked" / "psycopg"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named psycopg', name='psycopg')\n"
    )
    code, told = squidbot(
        tmp_path / "home", "postgresql://u:x@h/d", *command.split(), path=str(blocked.parent)
    )
    assert (code, ".[postgres]" in told, "Traceback" in told) == (
        CONFIGURATION,
        True,
        False,
    ), told


def test_the_password_is_never_shown(postgres: PostgresServer, database, tmp_path):
    """Not by the configuration as it is in effect, nor by what the check says."""
    home, url = tmp_path / "home", postgres.url(database)
    for command in (["migrate"], ["config", "show"], ["status"]):
        code, told = squidbot(home, url, *command)
        assert (code, PASSWORD in told) == (0, False), told
