"""What accounts keep for themselves, in a real PostgreSQL: keys by row shadow, documents, claims, the state key."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import psycopg
import pytest

from agent_core.state_folder import DiskFolder, StateUnreachable
from channels.base import ChannelUnavailable
from channels.email.config import OAuth
from channels.email.mail_credentials import TokenCredentials, token_store
from channels.matrix.client.nio_homeserver import NioHomeserver  # noqa: F401 - before nio's private parts
from channels.matrix.crypto.key_types import StoreBroken
from channels.matrix.crypto.olm_machine import OlmMachine, fetcher
from gateway.app import Overrides, build
from gateway.errors import ConfigInvalid
from gateway.operations.migration import migrate_operation
from gateway.settings import Settings
from gateway.store.lease import LeaseTimes, unwrap_lost_lease
from gateway.store.opening import open_postgres
from gateway.store.postgres.account_documents import AccountState, DatabaseFolder
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.state_key import StateKey
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.integration.test_moving import filled
from tests.integration.test_postgres_lease import keeper
from tests.postgres_server import PostgresServer
from tests.running_gateway import running

pytestmark = [pytest.mark.integration]
BOT, DEVICE, ROOM = "@bot:hs.test", "DEV", "!room"
KEY = "k" * 32


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.with_tables()


@asynccontextmanager
async def state_at(url: str, home: Path, *, key: str | None = KEY):
    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        state = queue.account_state(StateKey(key, home / "state-key"))
        with open_postgres():
            state.open()
        try:
            yield queue, state
        finally:
            state.close()


def folder(state: AccountState, home: Path) -> DatabaseFolder:
    return state.folder("matrix", home / "matrix")


def machine(place: DatabaseFolder) -> OlmMachine:
    place.local.mkdir(parents=True, exist_ok=True)
    fetcher(place.local, place)(DEVICE)
    return OlmMachine(place.local, BOT, DEVICE, "pickle", place)


def rows(made: OlmMachine) -> dict[str, list[tuple]]:
    """All of a store, but for the generation of a file."""
    found = {}
    for (name,) in made._database.execute_sql(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall():
        if name != "squidbot":
            found[name] = sorted(map(repr, made._database.execute_sql(f"SELECT * FROM {name}").fetchall()))
    return found


def room_keys(made: OlmMachine, count: int) -> None:
    for number in range(count):
        with made.changing():
            made._olm.create_outbound_group_session(f"{ROOM}{number}")


async def test_another_machine_makes_the_same_store(url: str, tmp_path: Path):
    """Same identity keys, same generation, all rows, also after deletions; the first file is another machine's."""
    async with state_at(url, tmp_path) as (_, state):
        first = machine(folder(state, tmp_path / "a"))
        first.new_keys(0)
        first.note_upload()
        room_keys(first, 20)
        first.upkeep("today", waiting=[], rooms=[])
        with first.changing():
            first._database.execute_sql(
                "DELETE FROM squidbot_room_keys WHERE room_id = ?",
                (f"{ROOM}3",),
            )
        here, generation, keys = rows(first), first.generation, first._olm.account.identity_keys
        first.close()
        second = machine(folder(state, tmp_path / "b"))
        assert rows(second) == here
        assert len(second.room_keys) == 19
        assert (second.generation, second._olm.account.identity_keys, second.shared) == (
            generation,
            keys,
            True,
        )
        second.close()


async def test_who_is_behind_writes_nothing_and_the_control_does_damage(url: str, tmp_path: Path):
    """Two machines have the account at once: the older one is refused, and opened again it is right."""
    async with state_at(url, tmp_path) as (_, state):
        old = machine(folder(state, tmp_path / "a"))
        new = machine(folder(state, tmp_path / "b"))
        room_keys(new, 1)
        there, before = rows(new), rows(old)
        with pytest.raises(StateUnreachable, match="another squidbot"):
            room_keys(old, 1)
        assert rows(old) == before
        assert old.is_stale
        with pytest.raises(StateUnreachable, match="opened again"):
            room_keys(old, 1)
        old.close()
        again = machine(folder(state, tmp_path / "a"))
        assert rows(again) == there
        again.close()
        # The control: a database without the generation takes what the old one says.
        old = machine(folder(state, tmp_path / "a"))
        room_keys(new := machine(folder(state, tmp_path / "b")), 1)
        old._shadow.generation = new.generation
        room_keys(old, 1)
        damaged = machine(folder(state, tmp_path / "c"))
        lost = set(rows(new)["squidbot_room_keys"]) - set(rows(damaged)["squidbot_room_keys"])
        assert len(lost) == 1
        for one in (old, new, damaged):
            one.close()


async def test_whoever_has_lost_the_lease_writes_nothing(url: str, tmp_path: Path):
    """Neither keys nor documents; the control has a lease of nobody."""
    async with state_at(url, tmp_path) as (one, state), state_at(url, tmp_path) as (two, other):
        await keeper(one, tmp_path / "one", LeaseTimes()).take()
        place = folder(state, tmp_path / "a")
        place.write("session.json", b"of the first")
        old = machine(place)
        room_keys(old, 1)
        await two.database.writer.call(
            "end", lambda db: db.execute("UPDATE leases SET expires_at = 0"), locks=()
        )
        await keeper(two, tmp_path / "two", LeaseTimes()).take()
        for refused in (
            lambda: room_keys(old, 1),
            lambda: place.write("session.json", b"late"),
            lambda: place.swap("session.json", b"of the first", b"late"),
            lambda: place.remove("session.json"),
            lambda: place.claim("session.json", for_s=1),
        ):
            with pytest.raises(StateUnreachable):
                refused()
        taken = folder(other, tmp_path / "b")
        assert taken.read("session.json") == b"of the first"
        new = machine(taken)
        room_keys(new, 1)
        old.close()
        new.close()


async def test_a_commit_whose_answer_is_lost_is_found_again(url: str, tmp_path: Path, monkeypatch):
    """The database has it and the file has not: what is opened next has it."""
    async with state_at(url, tmp_path) as (_, state):
        made = machine(folder(state, tmp_path / "a"))
        save = DatabaseFolder.save

        def lost(self, *args, **more):
            save(self, *args, **more)
            raise StateUnreachable("the answer was lost")

        monkeypatch.setattr(DatabaseFolder, "save", lost)
        with pytest.raises(StateUnreachable):
            room_keys(made, 1)
        assert len(made.room_keys) == 0
        made.close()
        monkeypatch.undo()
        again = machine(folder(state, tmp_path / "a"))
        assert len(again.room_keys) == 1
        room_keys(again, 2)
        again.close()


async def test_a_store_of_before_is_taken_over_and_a_cache_without_its_rows_is_broken(
    url: str, tmp_path: Path
):
    local = tmp_path / "a" / "matrix"
    local.mkdir(parents=True)
    before = OlmMachine(local, BOT, DEVICE, "pickle")
    room_keys(before, 3)
    kept, keys = rows(before), before._olm.account.identity_keys
    before.close()
    async with state_at(url, tmp_path) as (_, state):
        made = machine(folder(state, tmp_path / "a"))
        room_keys(made, 1)
        made.close()
        other = machine(folder(state, tmp_path / "b"))
        assert other._olm.account.identity_keys == keys
        assert len(other.room_keys) == 4
        assert len(kept["squidbot_room_keys"]) == 3
        other.close()
        folder(state, tmp_path).forget(DEVICE)
        with pytest.raises(StoreBroken):
            machine(folder(state, tmp_path / "a"))
    embedded = OlmMachine(local, BOT, DEVICE, "pickle")
    assert embedded.generation < 0  # an older copy than any that was committed
    embedded.close()


async def test_documents_are_encrypted_taken_over_once_and_swapped(
    url: str, tmp_path: Path, postgres: PostgresServer
):
    here = tmp_path / "a" / "matrix"
    DiskFolder(here).write("session.json", b"an access token")
    async with state_at(url, tmp_path) as (_, state):
        place = folder(state, tmp_path / "a")
        assert place.read("session.json") == b"an access token"
        assert not (here / "session.json").exists()
        assert place.read("nothing") is None
        assert place.swap("session.json", b"another", b"x") == b"an access token"
        assert place.swap("session.json", b"an access token", b"the next one") == b"the next one"
        assert place.remove("session.json")
        DiskFolder(here).write("session.json", b"an access token")  # an old copy of the home
        assert place.read("session.json") is None
        place.write("session.json", b"an access token")
        with postgres.admin(url.rpartition("/")[2]) as db:
            found = db.execute("SELECT folder, content FROM squidbot.all_account_document").fetchall()
            assert all(b"access" not in bytes(content) for _, content in found)
            db.execute("UPDATE squidbot.all_account_document SET folder = 'other' WHERE folder = 'matrix'")
        with pytest.raises(OSError, match="damaged"):
            state.folder("other", tmp_path).read("session.json")


async def test_one_process_at_a_time_renews(url: str, tmp_path: Path):
    """Until it has written, or its time is over; whoever claims twice is the same one."""
    async with state_at(url, tmp_path) as (_, one), state_at(url, tmp_path) as (_, two):
        mine, theirs = folder(one, tmp_path / "a"), folder(two, tmp_path / "b")
        mine.write("oauth.json", b"1")
        assert mine.claim("oauth.json", for_s=60)
        assert mine.claim("oauth.json", for_s=60)
        assert not theirs.claim("oauth.json", for_s=60)
        assert mine.swap("oauth.json", b"1", b"2") == b"2"
        assert theirs.claim("oauth.json", for_s=-1)
        assert mine.claim("oauth.json", for_s=60)
        assert theirs.swap("oauth.json", b"1", b"3") == b"2"


async def test_another_state_key_is_told_in_words(url: str, tmp_path: Path):
    """The first machine makes one; a second one without it, or with another, says what to do."""
    async with state_at(url, tmp_path / "a", key=None) as (_, state):
        folder(state, tmp_path / "a").write("session.json", b"x")
    made = (tmp_path / "a" / "state-key").read_text()
    with pytest.raises(ConfigInvalid, match=r"give it as gateway\.state_key"):
        async with state_at(url, tmp_path / "b", key=None):
            pass
    assert not (tmp_path / "b" / "state-key").exists()
    with pytest.raises(ConfigInvalid, match="another state key"):
        async with state_at(url, tmp_path / "b"):
            pass
    async with state_at(url, tmp_path / "b", key=made) as (_, state):
        assert folder(state, tmp_path / "b").read("session.json") == b"x"


def nobody_works_there(url: str) -> None:
    """A move leaves its lease to end by itself."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE squidbot.all_leases SET expires_at = 0")


async def test_a_move_carries_logins_and_keys(url: str, tmp_path: Path):
    """Another machine goes on with them."""
    home = await filled(tmp_path / "home")
    local = home.state("matrix")
    DiskFolder(local).write("session.json", b"an access token")
    DiskFolder(home.state("mcp")).write("far.login", b"a refresh token")
    DiskFolder(home.state("matrix")).write("reading.json", b"of this home")
    before = OlmMachine(local, BOT, DEVICE, "pickle")
    room_keys(before, 30)
    kept, generation = rows(before), before.generation
    before.close()

    moved = migrate_operation.to_postgres(home, home.root / "workspace", url, ManualClock(), state_key=KEY)
    assert not moved.already
    nobody_works_there(url)
    async with state_at(url, tmp_path) as (_, state):
        place = folder(state, tmp_path / "b")
        assert place.read("session.json") == b"an access token"
        assert place.read("reading.json") is None
        assert state.folder("mcp", tmp_path).read("far.login") == b"a refresh token"
        there = machine(place)
        assert (rows(there), there.generation) == (kept, generation)
        there.close()


async def test_a_token_that_one_machine_has_renewed_is_used_by_the_next(url: str, tmp_path: Path):
    """The provider takes each refresh token once; two machines that want one at the same time ask it once."""
    asked: list[str] = []

    async def provider(_url: str, form: dict[str, str]) -> dict[str, object]:
        asked.append(form["refresh_token"])
        assert form["refresh_token"] == f"refresh-{len(asked) - 1}", "it was used before"
        await anyio.sleep(0.3)
        number = len(asked)
        return {"access_token": f"access-{number}", "refresh_token": f"refresh-{number}", "expires_in": 3600}

    oauth = OAuth(provider="google", client_id="squid")

    def credentials(place: DatabaseFolder) -> TokenCredentials:
        file = token_store(place.local / "oauth.json", place)
        return TokenCredentials("bot", oauth, file, provider, SystemClock())

    async with state_at(url, tmp_path) as (_, one), state_at(url, tmp_path) as (_, two):
        mine, theirs = folder(one, tmp_path / "a"), folder(two, tmp_path / "b")
        mine.write("oauth.json", b'{"refresh": "refresh-0", "access": "", "ends_at": 0}')
        got: list[str] = []

        async def log_in(who: TokenCredentials) -> None:
            with suppress(ChannelUnavailable):  # another process is asking right now
                got.append((await who.get()).secret)

        first, second = credentials(mine), credentials(theirs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log_in, first)
            tasks.start_soon(log_in, second)
        assert (asked, got) == (["refresh-0"], ["access-1"])
        assert (await credentials(theirs).get()).secret == "access-1"
        theirs.write("oauth.json", b'{"refresh": "refresh-1", "access": "access-1", "ends_at": 1}')
        assert (await credentials(theirs).get()).secret == "access-2"
        assert (await credentials(mine).get()).secret == "access-2"
        assert asked == ["refresh-0", "refresh-1"]


@asynccontextmanager
async def daemon_at(url: str, home: Path, address: str, *, name: str = "club"):
    """A daemon with one account."""
    settings = Settings.model_validate({"gateway": {"store": url, "state_key": KEY}})
    channel = LoopbackChannel(LoopbackServer(), name=name, account=address)
    built = await build(settings, open_home(home), Overrides(channels={name: (channel, "each")}))
    async with running(built):
        with anyio.fail_after(60):
            await built.settled.wait()
        yield built


@pytest.mark.parametrize("active", [True, False], ids=["beside the active machine", "alone"])
async def test_a_machine_whose_account_is_another_one_is_refused(url: str, tmp_path: Path, *, active: bool):
    """It takes neither the login nor a message. The controls: the same account, and a new name for the other one."""
    one, another = "@club:hs.test", "@another:hs.test"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(daemon_at(url, tmp_path / "one", one))
        with anyio.fail_after(60):
            await first.started.wait()
        if not active:
            await stack.aclose()
        with pytest.raises(
            ConfigInvalid, match=f"the account club is {one}, but .* says {another}"
        ) as refused:
            await build(
                Settings.model_validate({"gateway": {"store": url, "state_key": KEY}}),
                open_home(tmp_path / "two"),
                Overrides(
                    channels={
                        "club": (LoopbackChannel(LoopbackServer(), name="club", account=another), "each")
                    }
                ),
            )
        assert refused.value.exit_code == 78
    for name, address in (("club", one), ("other", another)):
        async with daemon_at(url, tmp_path / "three", address, name=name) as built:
            with anyio.fail_after(60):
                await built.started.wait()


async def test_two_new_machines_with_different_accounts_at_once(url: str, tmp_path: Path):
    """The one that stood by is refused when it is to take over: nobody had noted anything at its start."""
    one, another = "@club:hs.test", "@another:hs.test"
    async with state_at(url, tmp_path / "key"):
        pass
    with pytest.raises(ConfigInvalid, match="the account club is"), unwrap_lost_lease():
        async with anyio.create_task_group() as tasks:
            settings = Settings.model_validate({"gateway": {"store": url, "state_key": KEY}})
            built = [
                await build(
                    settings,
                    open_home(tmp_path / address.strip("@").partition(":")[0]),
                    Overrides(
                        channels={
                            "club": (LoopbackChannel(LoopbackServer(), name="club", account=address), "each")
                        }
                    ),
                )
                for address in (one, another)
            ]
            tasks.start_soon(built[0].run)
            with anyio.fail_after(60):
                await built[0].started.wait()
                tasks.start_soon(built[1].run)
                await built[1].settled.wait()
                built[0].stop()
                await built[1].started.wait()
