"""The requests about keys, and the meaning of their answers. Stateless."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import structlog

from channels.matrix.client.homeserver import CLIENT, AnswerTooLong, Homeserver, HttpAnswer, part, problem
from channels.matrix.client.json_access import object_of
from channels.matrix.crypto.key_types import Device

if TYPE_CHECKING:
    from channels.matrix.crypto.olm_machine import OlmMachine

_AT_ONCE = 50
_log = structlog.get_logger(__name__)


class KeyTokenRefused(Exception):
    """The server rejected the token of a request about keys; the caller logs in again."""

    def __init__(self, answer: HttpAnswer) -> None:
        self.answer = answer
        super().__init__()


class StoreIsOld(Exception):
    """The server has keys of this device that the store does not know: the store is an older copy."""


class KeyRequests:
    """
    Sends requests about keys to a homeserver. A failure raises `ChannelUnavailable` (or another
    `ChannelError`), `TokenRefused` or `LinkBroken`.
    """

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def query(self, user_ids: Iterable[str]) -> Mapping[str, Any]:
        """The keys of people, as the server sends them."""
        return (await self._post("keys/query", {"device_keys": {user_id: [] for user_id in user_ids}})).body

    async def claim(self, machine: OlmMachine, devices: Iterable[Device]) -> None:
        """Start sessions with devices, as far as the server has valid one-time keys for them."""
        devices = list(devices)
        wanted: dict[str, dict[str, str]] = {}
        for device in devices:
            wanted.setdefault(device.user_id, {})[device.device_id] = "signed_curve25519"
        try:
            answer = await self._post("keys/claim", {"one_time_keys": wanted})
        except AnswerTooLong:
            if len(devices) > 1:
                await self.claim(machine, devices[::2])
                await self.claim(machine, devices[1::2])
            return
        claimed = object_of(answer.body, "one_time_keys")
        found = [(user_id, device_id) for user_id in claimed for device_id in object_of(claimed, user_id)]
        for start in range(0, len(found), _AT_ONCE):
            some: dict[str, dict[str, Any]] = {}
            for user_id, device_id in found[start : start + _AT_ONCE]:
                some.setdefault(user_id, {})[device_id] = claimed[user_id][device_id]
            machine.start_sessions(some)
            await anyio.lowlevel.checkpoint()  # each is a matter of milliseconds

    async def upload(self, machine: OlmMachine, left: int | None) -> None:
        """Upload those of our keys that the server lacks; ``left`` one-time keys are left there."""
        body = machine.new_keys(left)
        if body is None:
            return
        answer = await self._ask("POST", f"{CLIENT}/keys/upload", body)
        if answer.status == 400 and "already exists" in answer.error:
            _log.error("matrix.keys_refused", error=answer.error)
            raise StoreIsOld
        if not answer.good:
            raise problem(answer)
        machine.note_upload()
        _log.info("matrix.keys_uploaded", one_time_keys=len(body["one_time_keys"]))

    async def to_device(self, kind: str, messages: Mapping[str, Mapping[str, Any]]) -> None:
        """Send to devices: user → device → content."""
        path = f"{CLIENT}/sendToDevice/{part(kind)}/{secrets.token_hex(12)}"
        answer = await self._ask("PUT", path, {"messages": messages})
        if not answer.good:
            raise problem(answer)

    async def _post(self, path: str, body: Mapping[str, Any]) -> HttpAnswer:
        answer = await self._ask("POST", f"{CLIENT}/{path}", body)
        if not answer.good:
            raise problem(answer)
        return answer

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> HttpAnswer:
        answer = await self._homeserver.request(method, path, body)
        if answer.is_token_refused:
            raise KeyTokenRefused(answer)
        return answer
