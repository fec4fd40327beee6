"""A daemon whose turns stand still is not vouched for: its own process, with the ear of a service manager."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.daemon import REPOSITORY

STUCK = REPOSITORY / "tests" / "deploy" / "stuck_daemon.py"
WITHIN_S = 40.0


class Ear:
    """The service manager's socket; ``said`` is all that was heard, ``pings`` when the watchdog was calmed."""

    def __init__(self, folder: Path) -> None:
        self.path = os.path.relpath(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(0.1)
        self.said: list[str] = []
        self.pings: list[float] = []

    def listen(self, seconds: float) -> None:
        """Hear what comes within this time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                said = self.socket.recv(4096).decode()
            except TimeoutError:
                continue
            self.said.append(said)
            if "WATCHDOG=1" in said:
                self.pings.append(time.monotonic())

    def until(self, text: str) -> None:
        """Listen until it is said."""
        end = time.monotonic() + WITHIN_S
        while not any(text in one for one in self.said):
            assert time.monotonic() < end, self.said
            self.listen(0.2)


def test_no_sign_of_life_while_a_turn_hangs(tmp_path: Path) -> None:
    """
    Pings come while turns are worked on; when one hangs they stop and the status says why, although the loop
    turns and answers commands. The next process answers what hung.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    ear = Ear(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")]),
        "SQUIDBOT_HOME": str(home),
    }
    watched = {**environment, "NOTIFY_SOCKET": os.path.abspath(ear.path), "WATCHDOG_USEC": "1000000"}

    def squidbot(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", *arguments]
        return subprocess.run(
            command,
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )

    def started() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, STUCK, home], env=watched, stdout=log, stderr=log)

    daemon = started()
    try:
        ear.until("READY=1")
        assert "hello" in squidbot("chat", text="hello there\n/quit\n").stdout.lower()
        ear.pings.clear()
        ear.listen(3)
        assert ear.pings

        (home / "hang").touch()
        asking = subprocess.Popen(
            [sys.executable, "-m", "gateway", "chat"], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert asking.stdin is not None
        asking.stdin.write(b"hello again\n")
        asking.stdin.flush()
        ear.until("STATUS=stuck: a turn has been running")
        ear.pings.clear()
        ear.listen(3)
        assert ear.pings == []
        told = json.loads(squidbot("status", "--json").stdout)
        assert "a turn has been running" in told["stuck_because"]

        daemon.kill()  # as the service manager does, with another signal
        daemon.wait(120)
        asking.kill()
        asking.communicate(timeout=120)
        daemon = started()
        end = time.monotonic() + WITHIN_S
        states: list[str] = []
        while len(states) < 2 or not set(states) <= {
            "answered",
            "settled",
        }:  # nobody is at the terminal any more
            assert time.monotonic() < end, (states, (tmp_path / "log").read_text()[-2000:])
            time.sleep(0.2)
            listed = squidbot("inbox", "list", "--json").stdout
            states = [row["state"] for row in json.loads(listed)["rows"]] if listed else []
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(120) == 0
    finally:
        daemon.kill()
        daemon.wait(120)
        ear.socket.close()
