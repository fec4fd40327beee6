"""
`squidbot demo`: the bot on a real Matrix server and a real mail server on this machine. It starts a real
Matrix server and a real mail server on loopback, makes the people, writes a configuration, runs the daemon on
it as its own process, and gives the person a prompt. Nothing is simulated but, if no key is found, the model.
Everything it starts dies with it, also when it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from devservers.environment import cache_folder
from devservers.errors import DevServerError, RequestFailed, StartFailed
from devservers.mail import MailServer
from devservers.matrix_peer import MatrixPeer
from devservers.ports import lease_ports
from devservers.process import Child
from devservers.synapse import Synapse
from gateway.cli.demo.conversation import converse
from gateway.cli.demo.tour_material import transcription_standin
from gateway.cli.setup.model_probe import ProbedModel, choose_model, ollama_models

__all__ = ["Demo", "run_demo"]

_SQUIDBOT = (sys.executable, "-m", "gateway")
_READY_LIMIT_S = 90.0
_LIMITS = ("sender_per_hour", "sender_per_day")
_PASSWORD = "demo"  # noqa: S105 - servers on loopback that live as long as the demo


@dataclass(slots=True)
class Demo:
    """The running demo: two servers, one daemon, and Alice, who is the owner."""

    synapse: Synapse
    mail: MailServer
    home: Path
    listen: str
    daemon: Child
    alice: MatrixPeer
    page: str = ""
    """A page of a site on this machine."""
    room: str = ""

    def status(self) -> dict[str, Any]:
        """Return the daemon's status."""
        with urllib.request.urlopen(f"http://{self.listen}/status", timeout=10) as answer:
            status: dict[str, Any] = json.loads(answer.read())
        return status

    def console_link(self) -> str:
        """Return what ``squidbot console`` says: an address that lets one browser in."""
        command = [*_SQUIDBOT, "console", "--home", str(self.home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        return (done.stdout or done.stderr).strip()

    def kill_daemon(self) -> None:
        """Kill the daemon with SIGKILL, as a power cut would, and start it again on the same home."""
        self.daemon.signal(signal.SIGKILL)
        self.daemon.kill()
        self.daemon = _start_daemon(self.home)

    def end_daemon(self) -> None:
        """Stop whichever daemon runs."""
        self.daemon.kill()

    def wait_until_ready(self, say: Callable[[str], None]) -> None:
        """Wait until every channel has caught up. Raises StartFailed with the end of the log."""
        started = told = time.monotonic()
        while not _answers(f"http://{self.listen}/readyz"):
            now = time.monotonic()
            if not self.daemon.alive:
                raise StartFailed(f"the daemon ended while starting. {self.daemon.log_tail()}")
            if now - started > _READY_LIMIT_S:
                raise StartFailed(
                    f"the daemon was not ready after {_READY_LIMIT_S:.0f} s. {self.daemon.log_tail()}"
                )
            if now - told > 5:
                told = now
                say(f"the daemon is connecting ({now - started:.0f} s)")
            time.sleep(0.05)


def run_demo(*, keep: Path | None = None, tour: bool = False) -> int:
    """
    Run the demo until the person leaves. Returns the exit code.

    Args:
        keep: Use this folder and leave it; by default all is in a temporary folder that is removed.
        tour: Show the main things without asking, then leave; also what happens without anybody to ask.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="squidbot-demo-")))
            folder.chmod(0o711)  # servers that give up root must be able to pass through
        else:
            folder = keep.absolute()
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                print(f"squidbot: {folder} cannot be created: {error.strerror}", file=sys.stderr)
                return 73
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Also when the window is closed; not under nohup.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            demo = _start(folder, stack)
        except (DevServerError, OSError) as error:
            print(f"The demo could not start: {error}", file=sys.stderr)
            return 1
        _say(f"ready after {time.monotonic() - started:.0f} s")
        print(_invitation(demo))
        code = converse(demo, tour=tour)
        _say("stopping the servers and the daemon")
        return code


def _start(folder: Path, stack: ExitStack) -> Demo:
    _say("starting a Matrix server and a mail server on this machine (the first run downloads them)")
    users = {"bot": _PASSWORD, "alice": _PASSWORD}
    with ThreadPoolExecutor(3) as pool:
        synapse_started = pool.submit(Synapse.start, folder / "synapse", say=_say)
        mail_started = pool.submit(MailServer.start, folder / "mail", users=users, say=_say)
        ollama = pool.submit(ollama_models)
        synapse = _started(synapse_started, stack)
        mail = _started(mail_started, stack)
    for user in users:
        _register(synapse, user)
    alice = MatrixPeer.login(synapse.url, "alice", _PASSWORD)
    model = choose_model(os.environ, ollama.result())
    _say(f"the model is {model.told}")
    [lease, page] = lease_ports(2, cache_folder() / "ports")
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    listen = f"127.0.0.1:{lease.port}"
    config = home / "squidbot.yaml"
    config.touch(mode=0o600)
    settings = _settings(synapse, mail, model, listen)
    llm = settings.setdefault(
        "llm", {"models": {"demo": {"model": "demo/demo"}}, "pools": {"main": ["demo"]}}
    )
    llm["providers"] = {**llm.get("providers", {}), "ears": transcription_standin(stack)}
    settings["voice"] = {"transcribe": {"provider": "ears", "model": "openai/whisper-1"}}
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    demo = Demo(synapse, mail, home, listen, _start_daemon(home), alice)
    stack.callback(demo.end_daemon)
    demo.wait_until_ready(_say)
    demo.page = _serve_page(page.port, stack)
    demo.room = alice.create_room(invite=[f"@bot:{synapse.server_name}"], is_direct=True, name="squidbot")
    return demo


def _register(synapse: Synapse, user: str) -> None:
    try:
        synapse.register(user, _PASSWORD)
    except RequestFailed as error:
        if error.errcode != "M_USER_IN_USE":  # an earlier demo has used the same folder
            raise


_Server = TypeVar("_Server", Synapse, MailServer)


def _started(starting: Future[_Server], stack: ExitStack) -> _Server:
    server = starting.result()
    stack.callback(server.stop)
    return server


def _serve_page(port: int, stack: ExitStack) -> str:
    """The address of a page that is there as long as the demo."""
    from gateway.cli.demo.tour_material import Site  # noqa: PLC0415 - the demo alone needs it

    site = Site(port)
    stack.callback(site.close)
    return site.url


def _start_daemon(home: Path) -> Child:
    return Child([*_SQUIDBOT, "run", "--home", str(home)], log=home / "daemon.log", cwd=home)


def _settings(synapse: Synapse, mail: MailServer, model: ProbedModel, listen: str) -> dict[str, Any]:
    bot, alice = f"@bot:{synapse.server_name}", f"@alice:{synapse.server_name}"
    settings: dict[str, Any] = {
        "owner": {"aliases": [alice, mail.address("alice")]},
        "channels": {
            "matrix": {
                "enabled": True,
                "homeserver": synapse.url,
                "user_id": bot,
                "password": _PASSWORD,
                "allow_from": [alice],
            },
            "email": {
                "enabled": True,
                "address": mail.address("bot"),
                "username": "bot",
                "password": _PASSWORD,
                "imap": {"host": mail.imap_host, "port": mail.imap_port, "security": "tls"},
                "smtp": {"host": mail.smtp_host, "port": mail.smtp_port, "security": "starttls"},
                "tls_ca_file": str(mail.ca_file),
                "allow_from": [mail.address("alice")],
                "trusted_authserv_ids": [mail.domain],
                "limits": dict.fromkeys(_LIMITS, 0),  # nobody is tired of the demo
            },
            "api": {},  # the chat of the console
        },
        "gateway": {"http": {"listen": listen, "console": True}},
        "tools": {"shell": {"allow": "owner"}, "web": {"allow_private": ["127.0.0.1"]}},
    }
    if model.llm:
        settings["llm"] = model.llm
    return settings


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _invitation(demo: Demo) -> str:
    mail = demo.mail
    return f"""
You are Alice, the bot's owner. What you type goes into a Matrix room and the answer comes back through the
homeserver.   /mail TEXT  writes a mail   /voice TEXT  speaks   /task  has it use tools   /kill  pulls the
plug   /console  shows it all on a page in your browser   /help  /quit

To join in with programs of your own on this machine:
  Matrix   homeserver {demo.synapse.url}   user @alice:{demo.synapse.server_name}   password {_PASSWORD}
  mail     {mail.address("alice")}   user alice   password {_PASSWORD}
           IMAP {mail.imap_host}:{mail.imap_port} (TLS)   SMTP {mail.smtp_host}:{mail.smtp_port} (STARTTLS)
           certificate authority {mail.ca_file}
  daemon   http://{demo.listen}/status   home {demo.home}
"""


def _say(text: str) -> None:
    # Both servers start at a time: one call, so that no line comes between a line and its end.
    sys.stderr.write(f"· {text}\n")
