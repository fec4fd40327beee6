"""The life of a development server: crash, freeze, failing start, and never a moment longer than its parent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import devservers
from devservers import MailServer, MatrixPeer, StartFailed, Synapse


class TestLife:
    def test_life_cycle(self, synapse: Synapse, tmp_path: Path) -> None:
        """A killed server comes back at the same address with its users; a frozen one answers after its thaw."""
        with Synapse.start(
            tmp_path / "hs", default_room_version="11", overrides={"max_avatar_size": "1M"}
        ) as own:
            before, url = own.register("dora", "pw"), own.url
            own.kill()
            with pytest.raises(OSError):
                MatrixPeer.login(url, "dora", "pw")
            own.restart()
            dora = MatrixPeer(url, before.user_id, before.access_token)
            own.pause()
            threading.Timer(0.5, own.resume).start()
            room = dora.create_room()

            assert own.url == url
            assert own.server_name in room
            pid = own.pid

        assert is_gone(pid)

    def test_failing_start(self, synapse: Synapse, tmp_path: Path) -> None:
        """A server that cannot start says why, with the end of its log."""
        with pytest.raises(StartFailed, match="nonsense"):
            Synapse.start(tmp_path, overrides={"database": {"name": "nonsense"}})

    def test_starting_thread_may_end(self, tmp_path: Path) -> None:
        """A server lives on when the thread that started it ends."""
        started: list[MailServer] = []
        thread = threading.Thread(target=lambda: started.append(MailServer.start(tmp_path, flavour="pymap")))
        thread.start()
        thread.join()
        [server] = started
        with server:
            time.sleep(0.3)

            assert server.peer("bot").folders()

    @pytest.mark.parametrize("victim", ["parent", "keepers"])
    def test_nothing_outlives_us(self, synapse: Synapse, victim: str) -> None:
        """SIGKILL the process that started the servers (or the keepers in between): all is gone in a moment."""
        scratch = Path(tempfile.mkdtemp(prefix="sq"))
        scratch.chmod(0o711)
        environment = os.environ | {
            "TMPDIR": str(scratch),
            "PYTHONPATH": str(Path(devservers.__file__).parents[1]),
        }
        with subprocess.Popen(
            [sys.executable, "-c", STARTER, str(scratch)], stdout=subprocess.PIPE, text=True, env=environment
        ) as parent:
            try:
                assert parent.stdout is not None
                groups: list[int] = json.loads(parent.stdout.readline())
                assert groups and not any(is_gone(group) for group in groups)
                for pid in [parent.pid] if victim == "parent" else [keeper_of(group) for group in groups]:
                    os.kill(pid, signal.SIGKILL)
                deadline = time.monotonic() + 15
                while not all(is_gone(group) for group in groups) and time.monotonic() < deadline:
                    time.sleep(0.1)

                assert [group for group in groups if not is_gone(group)] == []
                if victim == "parent":
                    wait_until(lambda: not list(scratch.glob("squidbot-*")))
            finally:
                parent.kill()
                shutil.rmtree(scratch, ignore_errors=True)


STARTER = """
import json, sys, time
from devservers import MailServer, Synapse
mail = MailServer.start(sys.argv[1] + "/mail")
synapse = Synapse.start(sys.argv[1] + "/synapse")
print(json.dumps([synapse.pid, *mail.pids]), flush=True)
time.sleep(600)
"""


def is_gone(group: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return False
    return True


def keeper_of(group: int) -> int:
    said = subprocess.run(["ps", "-o", "ppid=", "-p", str(group)], capture_output=True, text=True, check=True)
    return int(said.stdout)


def wait_until(check: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)
