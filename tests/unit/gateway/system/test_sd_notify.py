"""The service manager hears what it should, and its absence is no trouble."""

from __future__ import annotations

import os
import socket

from gateway.system.sd_notify import Notifier


def test_messages_arrive_as_datagrams(tmp_path):
    """READY, STATUS, WATCHDOG and STOPPING are what systemd reads."""
    path = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(path)
        notifier = Notifier({"NOTIFY_SOCKET": path})
        assert notifier.ready("all\nfine")
        assert notifier.status("matrix up")
        assert notifier.watchdog()
        assert notifier.stopping()
        assert notifier.extend_start("no\ndatabase", within_s=2.5)
        heard = [ear.recv(200) for _ in range(5)]
    assert heard[:4] == [b"READY=1\nSTATUS=all fine", b"STATUS=matrix up", b"WATCHDOG=1", b"STOPPING=1"]
    assert heard[4] == b"EXTEND_TIMEOUT_USEC=2500000\nSTATUS=no database"


def test_an_abstract_socket_is_spoken_to():
    """A leading @ means the abstract namespace."""
    name = f"squidbot-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"\0{name}")
        assert Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert ear.recv(100) == b"READY=1"


def test_nobody_listening_is_no_error(tmp_path):
    """Neither a missing variable nor a dead socket stops the daemon."""
    assert not Notifier({}).ready()
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_the_watchdog_is_fed_twice_in_its_interval_and_only_if_it_is_ours():
    """WATCHDOG_PID of another process means another process."""
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000"}
    assert Notifier(environ).watchdog_interval_s == 15
    assert Notifier({**environ, "WATCHDOG_PID": "1"}).watchdog_interval_s is None
    assert Notifier({**environ, "WATCHDOG_PID": str(os.getpid())}).watchdog_interval_s == 15
    assert Notifier({"WATCHDOG_USEC": "30000000"}).watchdog_interval_s is None
    assert Notifier({**environ, "WATCHDOG_USEC": "x"}).watchdog_interval_s is None
