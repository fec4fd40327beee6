"""A real mail server on loopback: IMAP with implicit TLS, submission on two ports, LMTP.

Two flavours. `dovecot`: an installed Dovecot keeps the mail (see `dovecot.py`) and our submission server
hands it over by LMTP. `pymap`: one Python process does everything and keeps the mail in memory; nothing
needs to be installed, and a restart begins with empty mailboxes. `auto` takes Dovecot where it is there
and works. In both the submission server runs under the Python of the mail tools (see `mailhost`), makes
mistakes on request, and writes the verdict about the sender that the gateway believes.

Logins are `bot` or `bot@mail.test`. The methods block; call them from a thread where an event loop runs.
"""

from __future__ import annotations

import contextlib
import imaplib
import json
import secrets
import signal
import smtplib
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from devservers import dovecot
from devservers.environment import cache_folder, prepare_tools
from devservers.errors import DevServerError, StartFailed, ToolsMissing, WaitedInVain
from devservers.mail_peer import MailPeer
from devservers.mailhost.faults import Attempt, Fault
from devservers.ports import PortLease, answers_with, lease_ports
from devservers.process import Child, Say, clean_environment, silent, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

Flavour: TypeAlias = Literal["auto", "dovecot", "pymap"]
#: Which half to act on. Under pymap there is only one process, and every part is all of it.
Part: TypeAlias = Literal["all", "imap", "smtp"]

DOMAIN = "mail.test"
USERS = {"bot": "bot-pw", "alice": "alice-pw"}
HOST = "127.0.0.1"
START_LIMIT_S = 60.0
START_TRIES = 3
PORT_TAKEN = "ddress already in use"
BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
PORTS = ("imap", "lmtp", "smtp", "smtps", "control")
LATER = "451 4.3.0 Try again later"


class MailServer:
    """A running mail server; also a context manager that stops it."""

    imap_host = HOST
    smtp_host = HOST

    def __init__(self, folder: Path, python: Path, users: Mapping[str, str], domain: str) -> None:
        """Take the parts and lease the ports; use `MailServer.start` instead."""
        self.folder = folder
        self.domain = domain
        self.flavour: Literal["dovecot", "pymap"] = "pymap"
        self.ca_file = folder / "ca.pem"
        self._users = dict(users)
        self._python = python
        self._token = secrets.token_hex(16)
        self._leases: list[PortLease] = lease_ports(len(PORTS), cache_folder() / "ports")
        ports = dict(zip(PORTS, (lease.port for lease in self._leases), strict=True))
        self.imap_port = ports["imap"]
        self.lmtp_port = ports["lmtp"]
        self.smtp_port = ports["smtp"]
        self.smtps_port = ports["smtps"]
        self._control_port = ports["control"]
        self._store: dovecot.Dovecot | None = None
        self._host: Child | None = None

    @classmethod
    def start(
        cls,
        folder: Path | str,
        *,
        users: Mapping[str, str] = USERS,
        domain: str = DOMAIN,
        flavour: Flavour = "auto",
        say: Say | None = None,
    ) -> Self:
        """Start a mail server whose certificates and logs go to `folder`, and wait until it answers.

        `users` are mailbox names with their passwords.
        """
        report = say or silent
        home = Path(folder).absolute()
        home.mkdir(parents=True, exist_ok=True)
        python = prepare_tools("mail", say=report)
        _make_certificates(python, home)
        parts = (home, python, users, domain)
        installed = dovecot.find_or_none() if flavour != "pymap" else None
        if flavour == "dovecot" and installed is None:
            raise ToolsMissing("Dovecot is not installed (on Debian: dovecot-imapd and dovecot-lmtpd)")
        if installed is not None:
            try:
                return cls._start_on_free_ports(parts, installed, report)
            except StartFailed as error:
                if flavour == "dovecot":
                    raise
                report(f"Dovecot is installed but does not work here, going on without it: {error}")
        return cls._start_on_free_ports(parts, None, report)

    @classmethod
    def _start_on_free_ports(
        cls,
        parts: tuple[Path, Path, Mapping[str, str], str],
        installed: dovecot.Installed | None,
        say: Say,
    ) -> Self:
        for tries_left in reversed(range(START_TRIES)):
            server = cls(*parts)
            try:
                server._open(installed, say)
            except BaseException as error:
                server.stop()
                if not (isinstance(error, StartFailed) and PORT_TAKEN in str(error) and tries_left):
                    raise
            else:
                return server
        raise AssertionError("unreachable: the last try returns or raises")

    @property
    def pids(self) -> list[int]:
        """The process (and group) ids of the running servers."""
        return [child.pid for child in self._children("all")]

    def address(self, user: str) -> str:
        """Give the mail address of a user."""
        return f"{user}@{self.domain}"

    def peer(self, user: str) -> MailPeer:
        """Be one of the users."""
        return MailPeer(
            self.address(user),
            self._users[user],
            imap_port=self.imap_port,
            smtp_port=self.smtp_port,
            ca_file=self.ca_file,
        )

    def messages(self, user: str, folder: str = "INBOX") -> list[bytes]:
        """Read all messages of a user's folder, oldest first, without marking them."""
        return self.peer(user).raw_list(folder)

    def inject(self, recipient: str, raw: bytes, *, sender: str = "") -> None:
        """Deliver bytes directly into a mailbox: no login, no checks, no verdict about the sender."""
        with smtplib.LMTP(HOST, self.lmtp_port, local_hostname="localhost", timeout=60) as lmtp:
            lmtp.sendmail(sender, [recipient], raw)

    def add_user(self, name: str, password: str) -> None:
        """Add a mailbox to the running server."""
        self._users[name] = password
        self._ask("add-user", name=name, password=password)
        if self._store is not None:
            self._store.write_users(self._users)
        self._wait_for_login(name)

    def fail_next(
        self, fault: Fault | str, *, times: int = 1, reply: str = LATER, sender: str | None = None
    ) -> None:
        """Make the next `times` submissions (of one sender address, or of anybody) fail in this way."""
        self._ask("plan", fault=str(Fault(fault)), times=times, reply=reply, sender=sender)

    def pending_faults(self) -> list[dict[str, Any]]:
        """List planned faults that have not happened yet."""
        return list(self._ask("pending"))

    def clear_faults(self) -> None:
        """Forget all planned faults."""
        self._ask("clear")

    def attempts(self, sender: str | None = None) -> list[Attempt]:
        """List what was submitted (and refused) since the submission server started."""
        every = [Attempt(**entry) for entry in self._ask("attempts")]
        return [attempt for attempt in every if sender in (None, attempt.sender)]

    def restart(self, part: Part = "all", *, say: Say | None = None) -> None:
        """Kill a part of the server if it runs and start it again on the same ports."""
        self.kill(part)
        self._launch(say or silent)

    def pause(self, part: Part = "all") -> None:
        """Freeze a part: connections stay open and nothing answers."""
        for child in self._children(part):
            child.signal(signal.SIGSTOP)

    def resume(self, part: Part = "all") -> None:
        """Let a frozen part run on."""
        for child in self._children(part):
            child.signal(signal.SIGCONT)

    def kill(self, part: Part = "all") -> None:
        """End a part as a crash would; `restart` brings it back. Dovecot keeps its mail, pymap does not."""
        if self._host is not None and (part != "imap" or self._store is None):
            self._host.kill()
            self._host = None
        if self._store is not None and part != "smtp":
            self._store.kill()

    def stop(self) -> None:
        """End everything for good and give the ports back."""
        self.kill()
        if self._store is not None:
            self._store.remove()
            self._store = None
        for lease in self._leases:
            lease.release()

    def __enter__(self) -> Self:
        """Give the running server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def _children(self, part: Part) -> list[Child]:
        store = self._store.child if self._store is not None else None
        whole = self._store is None
        chosen = [self._host if whole or part != "imap" else None, store if part != "smtp" else None]
        return [child for child in chosen if child is not None]

    def _open(self, installed: dovecot.Installed | None, say: Say) -> None:
        if installed is not None:
            self.flavour = "dovecot"
            self._store = dovecot.Dovecot(
                installed,
                tls=self.folder,
                imap_port=self.imap_port,
                lmtp_port=self.lmtp_port,
                domain=self.domain,
            )
            self._store.write_users(self._users)
        say(f"starting the mail server ({self.flavour})")
        self._launch(say)
        say(f"the mail server answers on ports {self.imap_port} (IMAP) and {self.smtp_port} (submission)")

    def _launch(self, say: Say) -> None:
        """Start whatever does not run."""
        if self._store is not None and self._store.child is None:
            self._store.launch(say=say, limit_s=START_LIMIT_S)
        if self._host is None:
            self._launch_host(say)

    def _launch_host(self, say: Say) -> None:
        configuration = {
            "domain": self.domain,
            "users": self._users,
            "certificate": str(self.folder / "server.pem"),
            "key": str(self.folder / "server.key"),
            "token": self._token,
            "control_port": self._control_port,
            "smtp_port": self.smtp_port,
            "smtps_port": self.smtps_port,
            "lmtp_port": self.lmtp_port,
            "imap_port": 0 if self._store is not None else self.imap_port,
        }
        path = self.folder / "mailhost.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(configuration))
        command = _tool_command(self._python, "devservers.mailhost.main", str(path))
        self._host = Child(command, log=self.folder / "mailhost.log", cwd=self.folder)
        wait_until_ready(
            self._host_answers, name="the mail server", child=self._host, limit_s=START_LIMIT_S, say=say
        )

    def _host_answers(self) -> bool:
        try:
            self._ask("pending")
        except OSError:
            return False
        return answers_with(self.smtp_port, b"220 ")

    def _ask(self, action: str, **arguments: object) -> Any:
        request = {"token": self._token, "action": action, **arguments}
        with socket.create_connection((HOST, self._control_port), timeout=30) as link:
            link.sendall(json.dumps(request).encode() + b"\n")
            with link.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b'{"error": "no answer"}')
        if "error" in answer:
            raise DevServerError(f"the mail server refused {action}: {answer['error']}")
        return answer["ok"]

    def _wait_for_login(self, name: str) -> None:
        """Wait until a new user can log in: Dovecot looks at its table at most once a second."""
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, imaplib.IMAP4.error), self.peer(name).imap():
                return
            time.sleep(0.2)
        raise WaitedInVain(f"the new mail user {name} cannot log in")


def _tool_command(python: Path, module: str, *arguments: str) -> list[str]:
    return [str(python), "-I", str(BOOTSTRAP), module, *arguments]


def _make_certificates(python: Path, folder: Path) -> None:
    command = _tool_command(python, "devservers.mailhost.certificates", str(folder))
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120, env=clean_environment())
    except subprocess.CalledProcessError as error:
        raise StartFailed(f"could not make certificates:\n{error.stderr.decode(errors='replace')}") from error
