"""A real Synapse on loopback, for `squidbot demo` and for the tests.

Everything it needs is written into one folder: configuration, signing key, database, media, log. Start-up
is three seconds of Python imports on an idle machine and five times that on a busy one, so tests share
one server and use fresh users. The configuration lifts every rate limit and switches the `/sync` response
cache off: with the cache a repeated request gets a two-minute-old answer.

The methods block; call them from a thread where an event loop runs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from devservers.environment import cache_folder, prepare_tools
from devservers.errors import StartFailed
from devservers.ports import PortLease, lease_ports
from devservers.process import Child, Say, silent, wait_until_ready
from devservers.rest import JsonObject, answers_ok, request_json

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_NAME = "hs.test"
START_LIMIT_S = 90.0
START_TRIES = 3
PORT_TAKEN = "ddress already in use"
UNLIMITED = {"per_second": 10000, "burst_count": 10000}
FLAT_LIMITS = (
    "rc_message",
    "rc_registration",
    "rc_admin_redaction",
    "rc_room_creation",
    "rc_key_requests",
    "rc_media_create",
    "rc_user_directory",
    "rc_delayed_event_mgmt",
    "rc_joins_per_room",
)
NESTED_LIMITS = {
    "rc_joins": ("local", "remote"),
    "rc_login": ("address", "account", "failed_attempts"),
    "rc_invites": ("per_room", "per_user", "per_issuer"),
    "rc_presence": ("per_user",),
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A registered user with one logged-in device."""

    user_id: str
    access_token: str
    device_id: str
    password: str


class Synapse:
    """A running homeserver; also a context manager that stops it."""

    server_name = SERVER_NAME

    def __init__(self, folder: Path, python: Path, lease: PortLease, secret: str) -> None:
        """Take the parts; use `Synapse.start` instead."""
        self.folder = folder
        self.url = f"http://127.0.0.1:{lease.port}"
        self._python = python
        self._lease = lease
        self._secret = secret
        self._child: Child | None = None

    @classmethod
    def start(
        cls,
        folder: Path | str,
        *,
        default_room_version: str = "12",
        overrides: Mapping[str, object] | None = None,
        say: Say | None = None,
    ) -> Self:
        """Start a homeserver in `folder` (made if missing) and wait until it answers.

        `overrides` replaces top-level keys of the configuration. A folder used before keeps its users.
        """
        report = say or silent
        home = Path(folder).absolute()
        home.mkdir(parents=True, exist_ok=True)
        python = prepare_tools("synapse", say=report)
        secret = secrets.token_hex(16)
        for tries_left in reversed(range(START_TRIES)):
            [lease] = lease_ports(1, cache_folder() / "ports")
            server = cls(home, python, lease, secret)
            _write_configuration(
                home,
                {**_configuration(home, lease.port, secret, default_room_version), **(overrides or {})},
            )
            try:
                server._launch(report)
            except BaseException as error:
                server.stop()
                if not (isinstance(error, StartFailed) and PORT_TAKEN in str(error) and tries_left):
                    raise
            else:
                return server
        raise AssertionError("unreachable: the last try returns or raises")

    @property
    def pid(self) -> int:
        """The process (and group) id of the running server."""
        return self._running().pid

    @property
    def log(self) -> Path:
        """The file with the server's own words."""
        return self.folder / "homeserver.log"

    def register(self, localpart: str, password: str, *, admin: bool = False) -> Credentials:
        """Make a user and log it in, with the shared registration secret."""
        address = f"{self.url}/_synapse/admin/v1/register"
        nonce = str(request_json("GET", address)["nonce"])
        parts = (nonce, localpart, password, "admin" if admin else "notadmin")
        mac = hmac.new(self._secret.encode(), "\0".join(parts).encode(), hashlib.sha1).hexdigest()
        answer = request_json(
            "POST",
            address,
            {"nonce": nonce, "username": localpart, "password": password, "admin": admin, "mac": mac},
        )
        return Credentials(
            user_id=str(answer["user_id"]),
            access_token=str(answer["access_token"]),
            device_id=str(answer["device_id"]),
            password=password,
        )

    def restart(self, *, say: Say | None = None) -> None:
        """Kill the server if it runs and start it again on the same port and data."""
        self.kill()
        self._launch(say or silent)

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server run on."""
        self._running().signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the server as a crash would; `restart` brings it back."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        """End the server for good and give its port back."""
        self.kill()
        self._lease.release()

    def __enter__(self) -> Self:
        """Give the running server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise StartFailed("Synapse is not running")
        return self._child

    def _launch(self, say: Say) -> None:
        command = [
            str(self._python),
            "-I",
            "-m",
            "synapse.app.homeserver",
            "-c",
            str(self.folder / "homeserver.yaml"),
        ]
        say("starting the Matrix server")
        self._child = Child(command, log=self.log, cwd=self.folder)
        wait_until_ready(
            lambda: answers_ok(f"{self.url}/health"),
            name="Synapse",
            child=self._child,
            limit_s=START_LIMIT_S,
            say=say,
        )
        say(f"the Matrix server answers at {self.url}")


def _write_configuration(folder: Path, configuration: JsonObject) -> None:
    """Write the files that a first start needs. JSON is YAML too."""
    key = folder / "signing.key"
    if not key.exists():
        # What `--generate-keys` would write, without its start-up time: algorithm, key id, unpadded seed.
        seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        key.write_text(f"ed25519 a_{secrets.token_hex(2)} {seed}\n")
        key.chmod(0o600)
    logging = {
        "version": 1,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
        "handlers": {"file": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "root": {"level": "WARNING", "handlers": ["file"]},
        "disable_existing_loggers": False,
    }
    (folder / "log.yaml").write_text(json.dumps(logging))
    path = folder / "homeserver.yaml"
    path.touch(mode=0o600)
    path.write_text(json.dumps(configuration, indent=1))


def _configuration(folder: Path, port: int, secret: str, default_room_version: str) -> JsonObject:
    listener: JsonObject = {
        "port": port,
        "type": "http",
        "tls": False,
        "bind_addresses": ["127.0.0.1"],
        "resources": [{"names": ["client", "media"], "compress": False}],
    }
    limits: JsonObject = dict.fromkeys(FLAT_LIMITS, UNLIMITED)
    limits |= {name: dict.fromkeys(kinds, UNLIMITED) for name, kinds in NESTED_LIMITS.items()}
    return {
        "server_name": SERVER_NAME,
        "public_baseurl": f"http://127.0.0.1:{port}/",
        "listeners": [listener],
        "database": {"name": "sqlite3", "args": {"database": str(folder / "homeserver.db")}},
        "signing_key_path": str(folder / "signing.key"),
        "media_store_path": str(folder / "media"),
        "pid_file": str(folder / "homeserver.pid"),
        "log_config": str(folder / "log.yaml"),
        "default_room_version": default_room_version,
        "registration_shared_secret": secret,
        "macaroon_secret_key": secret,
        "form_secret": secret,
        "enable_registration": False,
        "report_stats": False,
        "trusted_key_servers": [],
        "suppress_key_server_warning": True,
        "federation_domain_whitelist": [],
        "bcrypt_rounds": 4,
        "caches": {"sync_response_cache_duration": "0s"},
        **limits,
    }
