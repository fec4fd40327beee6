"""The real daemon as its own process, for tests: a home, a configuration, starts, signals and deaths."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from devservers import MailServer, Synapse
from devservers.environment import cache_folder
from devservers.ports import lease_ports

REPOSITORY = Path(__file__).parents[1]
# Becomes the daemon, and dies with the test's process (PR_SET_PDEATHSIG).
_DIE_WITH_PARENT = (
    "import ctypes,os,signal,sys;ctypes.CDLL(None).prctl(1,signal.SIGKILL);os.execv(sys.argv[1],sys.argv[1:])"
)


def matrix_settings(
    synapse: Synapse, user_id: str, password: str, *allow: str, **more: Any
) -> dict[str, Any]:
    """The part of a configuration that is about Matrix."""
    return {
        "homeserver": synapse.url,
        "user_id": user_id,
        "password": password,
        "allow_from": list(allow),
        "trust_devices": "all",  # the people of the tests have no cross-signing
        **more,
    }


def one_model(name: str, api_base: str = "http://127.0.0.1:9/v1") -> dict[str, Any]:
    """The settings ``llm`` of one model of one provider; nothing listens at the default address."""
    return {
        "providers": {"p": {"api_base": api_base, "api_key": "x"}},
        "models": {name: {"provider": "p", "model": f"openai/{name}"}},
        "pools": {"main": [name]},
        "default_pool": "main",
    }


def email_settings(mail: MailServer, address: str, password: str, *allow: str, **more: Any) -> dict[str, Any]:
    """The part of a configuration that is about mail."""
    return {
        "address": address,
        "username": address.partition("@")[0],
        "password": password,
        "imap": {"host": mail.imap_host, "port": mail.imap_port, "security": "tls"},
        "smtp": {"host": mail.smtp_host, "port": mail.smtp_port, "security": "starttls"},
        "tls_ca_file": str(mail.ca_file),
        "allow_from": list(allow),
        "trusted_authserv_ids": [mail.domain],
        "limits": dict.fromkeys(("sender_per_hour", "sender_per_day"), 0),
        **more,
    }


class Daemon:
    """
    ``squidbot run`` on a home folder.

    Args:
        home: The folder, made if it is missing.
        settings: The configuration; the port for ``/readyz`` is added.
    """

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
        self.home = home
        home.mkdir(mode=0o700, exist_ok=True)
        [self._lease] = lease_ports(1, cache_folder() / "ports")
        self.url = f"http://127.0.0.1:{self._lease.port}"
        whole = {
            **settings,
            "gateway": {"http": {"listen": self.url.removeprefix("http://")}, **settings.get("gateway", {})},
        }
        config = home / "squidbot.yaml"
        config.touch(mode=0o600)
        config.write_text(yaml.safe_dump(whole))
        self.process: subprocess.Popen[bytes] | None = None
        self.module = "gateway"
        """What is started: ``python -m MODULE run --home HOME``."""
        self.environment: dict[str, str] = {}
        """What is set in the environment of the next process besides."""
        self.python = sys.executable

    def start(self) -> subprocess.Popen[bytes]:
        """Start a process; several at once are the test's own affair."""
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
        with (self.home / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT),
                    *(self.python, "-m", self.module, "run", "--home", str(self.home)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env={**os.environ, "PYTHONPATH": path, **self.environment},
            )
        return self.process

    def up(self, *, within_s: float = 120.0) -> Self:
        """Start, and return when every channel is connected and has caught up."""
        self.start()
        self.wait_until(self.is_ready, within_s=within_s)
        return self

    def is_ready(self) -> bool:
        """Whether every channel is connected and has caught up."""
        return bool(self.asked("/readyz")[1].get("ready"))

    def wait_until(self, true: Any, *, within_s: float = 120.0) -> None:
        """Wait, as long as the daemon lives."""
        deadline = time.monotonic() + within_s
        while not true():
            assert self.process is not None
            assert self.process.poll() is None, f"the daemon ended: {self.log()[-3000:]}"
            assert time.monotonic() < deadline, f"in vain: {self.asked('/readyz')} {self.log()[-3000:]}"
            time.sleep(0.05)

    def asked(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one of the daemon's pages; status 0 if nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    def work(self, queue: str, *states: str) -> int:
        """How many rows of the inbox or the outbox are in these states."""
        counts = self.asked("/status")[1].get("work", {}).get(queue, {})
        return sum(counts.get(state, 0) for state in states)

    def terminate(self) -> None:
        """One SIGTERM."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(120)

    def ended(self, *, within_s: float = 120.0) -> int:
        """Wait for the end; returns the exit code."""
        assert self.process is not None
        return self.process.wait(within_s)

    def log(self) -> str:
        """What all processes here have said."""
        path = self.home / "daemon.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.kill()
        self._lease.release()
