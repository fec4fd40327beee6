"""
What several measurements need: real servers, the real daemon as a process of its own, and a look at /proc.

The servers are started when the first measurement asks for them and live until the end of the run. The daemon
is started directly, without a keeper in between, so that its start is timed from the first instruction.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from devservers import Credentials, MailServer, MatrixPeer, Synapse
from devservers.environment import cache_folder
from devservers.ports import lease_ports
from tests.bench.installed import installed_python

ROOT = Path(__file__).resolve().parents[2]
_READY_LIMIT_S = 60.0
_PASSWORD = secrets.token_hex(8)


class Rig:
    """
    One run of the benchmarks.

    Args:
        quick: Fewer repetitions: good for trying the benchmark itself, not for the figures.
        say: Told what is being done.
    """

    def __init__(self, *, quick: bool, say: Callable[[str], None]) -> None:
        self.quick = quick
        self.say = say
        self._stack = contextlib.ExitStack()
        self._synapse: Synapse | None = None
        self._mail: MailServer | None = None
        self._alice: MatrixPeer | None = None
        self._python = ""

    def __enter__(self) -> Self:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="squidbot-bench-")))
        self.folder.chmod(0o711)  # servers that give up root must be able to pass through
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def python(self) -> str:
        """The Python with which the daemon, the commands and their floors run: without tools of development."""
        if not self._python:
            self._python = installed_python(self.folder / "python")
        return self._python

    @property
    def synapse(self) -> Synapse:
        """The homeserver of this run."""
        if self._synapse is None:
            self.say("starting Synapse")
            self._synapse = self._stack.enter_context(Synapse.start(self.folder / "synapse"))
        return self._synapse

    @property
    def mail(self) -> MailServer:
        """The mail server of this run."""
        if self._mail is None:
            self.say("starting the mail server")
            users = {"alice": _PASSWORD}
            self._mail = self._stack.enter_context(MailServer.start(self.folder / "mail", users=users))
        return self._mail

    @property
    def alice(self) -> MatrixPeer:
        """The person who asks."""
        if self._alice is None:
            self._alice = MatrixPeer.of(self.synapse.url, self.synapse.register("alice", _PASSWORD))
        return self._alice

    def room_with(self, name: str) -> str:
        """A direct room of Alice and a bot, which has joined it."""
        room = self.alice.create_room(invite=[f"@{name}:{self.synapse.server_name}"], is_direct=True)
        deadline = time.monotonic() + 30
        while len(self.alice.members(room)) < 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not accept the invitation")
            time.sleep(0.05)
        return room

    def helper(self, module: str, *arguments: str) -> None:
        """Run a module beside the measurements until the end of the run; returns when it says ``ready``."""
        command = [sys.executable, "-m", module, *arguments]
        log = self._stack.enter_context((self.folder / f"{module}.log").open("wb"))
        process = subprocess.Popen(
            command, cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE, stderr=log
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{module} did not get ready: {Path(log.name).read_text(errors='replace')}")

    def made_folder(self, name: str) -> Path:
        """A folder of this run."""
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def person(self) -> Credentials:
        """Another login of Alice's."""
        peer = MatrixPeer.login(self.synapse.url, self.alice.user_id, _PASSWORD)
        return Credentials(peer.user_id, peer.access_token, peer.device_id, _PASSWORD)

    def daemon(
        self, llm: Mapping[str, Any] | None = None, *, mail: bool = True, chat: bool = True, **matrix: Any
    ) -> Daemon:
        """
        A daemon with a home of its own, and accounts of its own on both servers; not started yet.

        Args:
            llm: The ``llm:`` part of its configuration; the echo model by default.
            mail: Whether it has a mail account.
            chat: Whether it has a Matrix account.
            matrix: Further settings of its Matrix account.
        """
        name = f"bot-{secrets.token_hex(4)}"
        alice = f"@alice:{self.synapse.server_name}"
        self.synapse.register(name, _PASSWORD)
        aliases = [alice]
        if mail:
            self.mail.add_user(name, _PASSWORD)
            aliases.append(self.mail.address("alice"))
        [lease] = lease_ports(1, cache_folder() / "ports")
        self._stack.callback(lease.release)
        settings = {
            "owner": {"aliases": aliases},
            "llm": llm or {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}},
            "channels": {
                **({"matrix": self._chat_settings(name, alice) | matrix} if chat else {}),
                **({"email": self._mail_settings(name)} if mail else {}),
            },
            "gateway": {"http": {"listen": f"127.0.0.1:{lease.port}"}},
        }
        home = self.folder / name
        home.mkdir(mode=0o700)
        config = home / "squidbot.yaml"
        config.touch(mode=0o600)
        config.write_text(yaml.safe_dump(settings, sort_keys=False))
        daemon = Daemon(home, f"127.0.0.1:{lease.port}", name, self.python)
        self._stack.callback(daemon.kill)
        return daemon

    def _chat_settings(self, name: str, alice: str) -> dict[str, Any]:
        return {
            "homeserver": self.synapse.url,
            "user_id": f"@{name}:{self.synapse.server_name}",
            "password": _PASSWORD,
            "allow_from": [alice],
            "trust_devices": "all",  # who asks has no cross-signing
        }

    def _mail_settings(self, name: str) -> dict[str, Any]:
        return {
            "address": self.mail.address(name),
            "username": name,
            "password": _PASSWORD,
            "imap": {"host": self.mail.imap_host, "port": self.mail.imap_port, "security": "tls"},
            "smtp": {
                "host": self.mail.smtp_host,
                "port": self.mail.smtp_port,
                "security": "starttls",
            },
            "tls_ca_file": str(self.mail.ca_file),
            "allow_from": [self.mail.address("alice")],
            "trusted_authserv_ids": [self.mail.domain],
            "limits": {
                "sender_per_hour": 0,
                "sender_per_day": 0,
            },
            "circuit_breaker": {
                "answers_per_hour": 0,
                "thread_answers_per_hour": 0,
            },
        }


class Daemon:
    """``squidbot run`` on a home folder."""

    def __init__(self, home: Path, listen: str, name: str, python: str) -> None:
        self.home = home
        self.python = python
        self.name = name
        self._listen = listen
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """
        Start it and return how many seconds it took until ``/readyz`` said 200.

        Raises:
            RuntimeError: It ended, or was not ready within a minute.
        """
        with (self.home / "daemon.log").open("ab") as log:
            begun = time.perf_counter()
            self._process = subprocess.Popen(
                [self.python, "-m", "gateway", "run", "--home", str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=child_environment(),
            )
        while not self._is_ready():
            if self._process.poll() is not None or time.perf_counter() - begun > _READY_LIMIT_S:
                raise RuntimeError(f"the daemon is not ready; its log ends with:\n{self._log_tail()}")
            time.sleep(0.01)
        return time.perf_counter() - begun

    def stop(self) -> None:
        """End it as a service manager would, and wait until it has gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(40)
            self._process = None

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def rss_mb(self) -> float:
        """Its resident memory now, in units of 1,000,000 bytes."""
        for line in self._proc("status").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise RuntimeError("the daemon has gone")

    @property
    def children_mb(self) -> float:
        """The resident memory of the processes that it has started."""
        tasks = Path(f"/proc/{self._pid}/task").iterdir()
        children = {pid for task in tasks for pid in (task / "children").read_text().split()}
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in children)
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def log(self) -> str:
        """What it has said."""
        return (self.home / "daemon.log").read_text(errors="replace")

    @property
    def cpu_s(self) -> float:
        """The processor time that it has used since its start, in steps of 10 ms; threads that ended count."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def wake_ups(self) -> int:
        """How often its threads have been woken since its start."""
        folder = Path(f"/proc/{self._pid}/task")
        return sum(
            int(line.split()[1])
            for task in folder.iterdir()
            for line in (task / "status").read_text().splitlines()
            if line.startswith("voluntary_ctxt_switches")
        )

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self._pid}/{name}").read_text()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._listen}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-20:])


def child_environment() -> dict[str, str]:
    """Our environment, with byte-code allowed: without it the big libraries take twice as long to import."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "deploy")])}


def in_child(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a module of the benchmark in a clean process and read the JSON that it prints."""
    command: Sequence[str] = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=child_environment() | dict(environment or {}),
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)
