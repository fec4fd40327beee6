"""The control socket: what a person asks of a running daemon, for the owner alone, and how it refuses."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.errors import StateUnusable
from gateway.operations.control import control_client
from gateway.operations.control.control_client import ControlClient, ControlFailed, DaemonGone
from gateway.operations.control.control_server import serve_control
from gateway.operations.operation_context import OperationContext
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.home import Home, open_home
from tests.clock import LoopClock
from tests.operations_bench import Bench, inbound


@pytest.fixture
def home(tmp_path):
    return open_home(tmp_path / "h")


@pytest.fixture
async def bench(home):
    store = await SqliteQueue.open(home.database, clock=LoopClock())
    yield Bench(store, JsonlMemory(home.root, clock=LoopClock()))
    await store.aclose()


@asynccontextmanager
async def served(home, bench):
    async with serve_control(home, bench.ask):
        asking = ControlClient(home)

        async def call(name, **arguments):
            return await anyio.to_thread.run_sync(asking.call, name, arguments)

        yield call


class TestControl:
    async def test_what_is_asked_is_answered(self, home, bench):
        """The client gets what the operation returned."""
        [row] = await bench.accepted(inbound(1, text="grüße 🦑"))
        async with served(home, bench) as call:
            assert (await call("inbox_show", id=row))["row"]["text"] == "grüße 🦑"
            assert (await call("status"))["work"]["inbox"]["ready"] == 1

    async def test_refusals_keep_their_words_and_exit_codes(self, home, bench):
        """The person reads the same sentence on either way."""
        async with served(home, bench) as call:
            with pytest.raises(ControlFailed, match="there is no message 9") as caught:
                await call("inbox_show", id=9)
            assert (caught.value.kind, caught.value.exit_code) == ("NotFound", 1)
            with pytest.raises(ControlFailed, match="no operation"):
                await call("shutdown")

    @pytest.mark.parametrize("by_hand", [False, True])
    async def test_five_megabytes_are_refused_in_one_sentence(self, home, bench, monkeypatch, by_hand):
        """Before they are sent, and by the daemon, which reads no more of another client's."""
        if by_hand:
            monkeypatch.setattr(control_client, "MAX_REQUEST_BYTES", 10_000_000)
        async with served(home, bench) as call:
            with pytest.raises(ControlFailed, match="too much for one request") as caught:
                await call("inbox_show", id="x" * (1_100_000 if by_hand else 5_000_000))
            assert (caught.value.kind, caught.value.exit_code) == ("RequestInvalid", 2)
            assert (await call("status"))["work"]

    async def test_a_defect_is_told_as_one_and_the_socket_lives_on(self, home, bench):
        """No internals for the client; the next question is answered."""

        class Defective:
            async def load_global_memory(self, _scope):
                raise ZeroDivisionError("secret detail")

        bench.ask = OperationContext(bench.store, Defective())
        async with served(home, bench) as call:
            with pytest.raises(ControlFailed, match="unexpected ZeroDivisionError") as caught:
                await call("memory_show")
            assert "secret" not in str(caught.value)
            assert await call("inbox_list") == {"rows": []}

    async def test_a_queue_that_is_away_is_told_in_its_own_words(self, home, bench):
        """The person reads what is wrong and is told to try later, while the daemon lives on."""
        [row] = await bench.accepted(inbound(1))
        async with served(home, bench) as call:
            assert (await call("inbox_show", id=row))["row"]["state"] == "ready"
            away = home.database.rename(home.database.with_name("elsewhere.db"))
            with pytest.raises(ControlFailed, match="was removed or replaced") as caught:
                await call("inbox_drop", id=row)
            assert caught.value.exit_code == 75
            away.rename(home.database)
            assert (await call("inbox_drop", id=row))["id"] == row

    async def test_the_socket_is_for_the_owner_alone_and_is_removed(self, home, bench):
        """0600 in a folder of 0700."""
        old = os.umask(0)
        try:
            async with served(home, bench):
                assert stat.S_IMODE(home.control_socket.stat().st_mode) == 0o600
                assert stat.S_IMODE(home.run.stat().st_mode) == 0o700
        finally:
            os.umask(old)
        assert not home.control_socket.exists()

    async def test_a_socket_left_by_a_killed_daemon_is_replaced(self, home, bench):
        """The lock says that nobody is there, so it is a left-over."""
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(home.control_socket))
        assert home.control_socket.exists()
        with pytest.raises(DaemonGone):
            ControlClient(home).call("status")
        async with served(home, bench) as call:
            assert await call("inbox_list") == {"rows": []}

    async def test_what_is_no_socket_is_not_removed(self, home, bench):
        """A file of that name may be somebody's."""
        home.control_socket.write_text("mine")
        with pytest.raises(StateUnusable, match="control socket"):
            async with serve_control(home, bench.ask):
                pass
        # What was there before us is not ours to remove.
        assert home.control_socket.read_text() == "mine"

    async def test_a_home_deeper_than_the_kernel_likes_works(self, tmp_path, bench):
        """Socket paths end at 107 bytes; homes need not."""
        deep = open_home(tmp_path / ("x" * 120) / "h")
        async with served(deep, bench) as call:
            assert await call("inbox_list") == {"rows": []}

    def test_no_daemon_is_told_in_words(self, tmp_path):
        """With the hint that it may be starting."""
        with pytest.raises(DaemonGone, match="starting or stopping") as caught:
            ControlClient(Home(tmp_path)).call("status")
        assert caught.value.exit_code == 75
