"""A homeserver on which one person sets the time of every event, as the administrator of another homeserver can."""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from urllib.parse import quote

from devservers import Synapse
from tests.servers import skipped_without_tools


class Forger:
    """A person of an application service: the homeserver takes the time of its events from the request."""

    def __init__(self, url, token, localpart):
        from devservers.rest import request_json

        self._request, self._url, self._token = request_json, url, token
        body = {"type": "m.login.application_service", "username": localpart}
        self.user_id = self._request("POST", f"{url}/_matrix/client/v3/register", body, token=token)[
            "user_id"
        ]

    def call(self, method, path, body=None, *, ts=None):
        stamp = "" if ts is None else f"&ts={ts}"
        address = f"{self._url}/_matrix/client/v3{path}?user_id={quote(self.user_id)}{stamp}"
        return self._request(method, address, body, token=self._token)

    def join(self, room, *, ts=None):
        path = f"/rooms/{quote(room)}/state/m.room.member/{quote(self.user_id)}"
        return self.call("PUT", path, {"membership": "join"}, ts=ts)["event_id"]

    def leave(self, room):
        self.call("POST", f"/rooms/{quote(room)}/leave", {})

    def send_event(self, room, kind, content, *, ts=None):
        path = f"/rooms/{quote(room)}/send/{kind}/{secrets.token_hex(8)}"
        return self.call("PUT", path, content, ts=ts)["event_id"]

    def send(self, room, text, *, ts=None, **content):
        body = {"msgtype": "m.text", "body": text, **content}
        return self.send_event(room, "m.room.message", body, ts=ts)


@contextmanager
def forging_synapse(folder):
    """A homeserver, and a function that makes such people on it."""
    token = secrets.token_hex(16)
    registration = folder / "forgers.yaml"
    names = [{"exclusive": True, "regex": "@forger-.*"}]
    registration.write_text(
        json.dumps(
            {
                "id": "forgers",
                "url": None,
                "as_token": token,
                "hs_token": secrets.token_hex(16),
                "sender_localpart": "forgers",
                "rate_limited": False,
                "namespaces": {"users": names, "rooms": [], "aliases": []},
            }
        )
    )
    with skipped_without_tools():
        server = Synapse.start(
            folder / "hs", overrides={"app_service_config_files": [str(registration)]}, say=print
        )
    with server:
        yield server, lambda: Forger(server.url, token, f"forger-{secrets.token_hex(4)}")
