# ruff: noqa: INP001 - a script that runs alone, in Synapse's image
"""
Sets a Synapse up for squidbot; runs in Synapse's own image with nothing but the standard library.

``setup.py write``, before the first start: the configuration with random secrets, a signing key, and the
folder given to Synapse's user. What is there is kept. ``setup.py register``, once Synapse answers: the
accounts @bot and @owner, with the passwords from /run/secrets. Both may be run again at any time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
import urllib.error
import urllib.request
from pathlib import Path

DATA = Path("/data")
CONFIG = DATA / "homeserver.yaml"
REGISTRATION = DATA / "registration-secret"
SECRETS = Path("/run/secrets")
SERVER_NAME = "squidbot.internal"
SYNAPSE_ID = 991
ADDRESS = "http://synapse:8008/_synapse/admin/v1/register"
LIMIT_S = 30


def main(arguments: list[str]) -> int:
    """Do what is asked for; returns the exit code."""
    if arguments == ["write"]:
        write()
        return 0
    if arguments == ["register"]:
        register("bot", (SECRETS / "matrix-bot-password").read_text().strip())
        register("owner", (SECRETS / "matrix-owner-password").read_text().strip())
        return 0
    sys.stderr.write("usage: setup.py write|register\n")
    return 2


def write() -> None:
    """Make what is missing in /data and hand it to Synapse's user."""
    os.umask(0o077)
    key = DATA / "signing.key"
    if not key.exists():
        # What Synapse writes itself: algorithm, id of the key, seed without padding.
        seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        key.write_text(f"ed25519 a_{secrets.token_hex(2)} {seed}\n")
    if not REGISTRATION.exists():
        REGISTRATION.write_text(secrets.token_urlsafe(32))
    if not CONFIG.exists():
        (DATA / "log.json").write_text(json.dumps(_logging()))
        # JSON is YAML, too.
        CONFIG.write_text(json.dumps(_configuration(), indent=1))
    for path in (DATA, *DATA.rglob("*")):
        os.chown(path, SYNAPSE_ID, SYNAPSE_ID)


def register(name: str, password: str) -> None:
    """Make an account; one that is there is left as it is."""
    nonce = _post_or_get(None)["nonce"]
    parts = (nonce, name, password, "notadmin")
    mac = hmac.new(REGISTRATION.read_bytes(), "\0".join(parts).encode(), hashlib.sha1).hexdigest()
    try:
        _post_or_get({"nonce": nonce, "username": name, "password": password, "admin": False, "mac": mac})
    except urllib.error.HTTPError as error:
        if json.loads(error.read()).get("errcode") != "M_USER_IN_USE":
            raise
        sys.stdout.write(f"@{name}:{SERVER_NAME} is there already\n")
    else:
        sys.stdout.write(f"@{name}:{SERVER_NAME} is registered\n")


def _post_or_get(body: dict[str, object] | None) -> dict[str, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ADDRESS, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        found: dict[str, str] = json.loads(answer.read())
    return found


def _logging() -> dict[str, object]:
    return {
        "version": 1,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
        "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "root": {"level": "WARNING", "handlers": ["out"]},
        "disable_existing_loggers": False,
    }


def _configuration() -> dict[str, object]:
    database = {
        "user": "synapse",
        "password": (SECRETS / "postgres-password").read_text().strip(),
        "dbname": "synapse",
        "host": "postgres",
        "cp_min": 2,
        "cp_max": 5,
    }
    listener = {
        "port": 8008,
        "type": "http",
        "tls": False,
        "bind_addresses": ["0.0.0.0"],  # only published on this machine, see compose.yaml
        "resources": [{"names": ["client"], "compress": False}],
    }
    return {
        "server_name": SERVER_NAME,
        "public_baseurl": "http://localhost:8008/",
        "listeners": [listener],
        "database": {"name": "psycopg2", "args": database},
        "signing_key_path": str(DATA / "signing.key"),
        "media_store_path": str(DATA / "media"),
        "pid_file": "/tmp/homeserver.pid",
        "log_config": str(DATA / "log.json"),
        "registration_shared_secret_path": str(REGISTRATION),
        "macaroon_secret_key": secrets.token_urlsafe(32),
        "form_secret": secrets.token_urlsafe(32),
        "enable_registration": False,
        "report_stats": False,
        "trusted_key_servers": [],
        "suppress_key_server_warning": True,
        # Nobody else's server is spoken with.
        "federation_domain_whitelist": [],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
