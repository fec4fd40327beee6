"""
Tells systemd how the service is doing: one datagram per message to ``$NOTIFY_SOCKET`` (sd_notify(3)). Without
that variable, or when nobody reads, nothing happens: being watched must never stop the daemon.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends sd_notify(3) datagrams as ``environ`` says."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_usec = environ.get("WATCHDOG_USEC", "")
        self._watchdog_pid = environ.get("WATCHDOG_PID", "")

    @property
    def watchdog_interval_s(self) -> float | None:
        """Return the interval of `watchdog` calls, half of systemd's limit; None without a watchdog."""
        if not self._address or not self._watchdog_usec.isdigit():
            return None
        if self._watchdog_pid and self._watchdog_pid != str(os.getpid()):
            return None
        return int(self._watchdog_usec) / 2_000_000 or None

    def ready(self, status: str = "") -> bool:
        """Report that the service is up."""
        return self._send(f"READY=1\nSTATUS={_line(status)}" if status else "READY=1")

    def status(self, text: str) -> bool:
        """Show a sentence in ``systemctl status``."""
        return self._send(f"STATUS={_line(text)}")

    def extend_start(self, status: str, *, within_s: float) -> bool:
        """Promise to be ready, or to say this again, in that time (``EXTEND_TIMEOUT_USEC``)."""
        return self._send(f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}\nSTATUS={_line(status)}")

    def stopping(self, status: str = "") -> bool:
        """Report that the service is stopping."""
        return self._send(f"STOPPING=1\nSTATUS={_line(status)}" if status else "STOPPING=1")

    def reloading(self, status: str) -> bool:
        """Report that the service reads its configuration again; `ready` ends that."""
        now_usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={now_usec}\nSTATUS={_line(status)}")

    def watchdog(self) -> bool:
        """Report that the event loop still runs."""
        return self._send("WATCHDOG=1")

    def _send(self, message: str) -> bool:
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError:
            return False
        return True


def _line(text: str) -> str:
    return " ".join(text.split())
