"""
Tracks whose device lists are known, and fetches those of others. A query is answered when its slowest server
has answered, so there is one for each server, and nobody waits for people whom they do not write to. Whoever
is being queried is not queried again.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import structlog

from channels.base import ChannelClock
from channels.matrix.client.homeserver import (
    CLIENT,
    AnswerTooLong,
    Homeserver,
    HttpAnswer,
    channel_error,
    quote_path,
)
from channels.matrix.client.json_access import JsonObject, object_of
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
        if not answer.is_success:
            raise channel_error(answer)
        machine.note_upload()
        _log.info("matrix.keys_uploaded", one_time_keys=len(body["one_time_keys"]))

    async def to_device(self, kind: str, messages: Mapping[str, Mapping[str, Any]]) -> None:
        """Send to devices: user → device → content."""
        path = f"{CLIENT}/sendToDevice/{quote_path(kind)}/{secrets.token_hex(12)}"
        answer = await self._ask("PUT", path, {"messages": messages})
        if not answer.is_success:
            raise channel_error(answer)

    async def _post(self, path: str, body: Mapping[str, Any]) -> HttpAnswer:
        answer = await self._ask("POST", f"{CLIENT}/{path}", body)
        if not answer.is_success:
            raise channel_error(answer)
        return answer

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> HttpAnswer:
        answer = await self._homeserver.request(method, path, body)
        if answer.is_token_refused:
            raise KeyTokenRefused(answer)
        return answer


RETRY_S = 60.0
"""The time before a server that did not answer is asked again; until then known devices must do."""
AT_ONCE = 100
_QUERIES = 8

Learn = Callable[[str, JsonObject, Mapping[str, Any]], Awaitable[None]]
"""Takes a person, their devices, and the whole answer."""


def group_by_server(user_ids: Iterable[str], own: str = "") -> list[list[str]]:
    """
    People in groups by their servers, each of at most `AT_ONCE`; beyond a few, servers share a group.

    ``own``, who is in every room, is alone.
    """
    servers: dict[str, list[str]] = {}
    for user_id in sorted(user_ids):
        key = "" if user_id == own else user_id.partition(":")[2]
        servers.setdefault(key, []).append(user_id)
    shared: list[list[str]] = []
    for number, users in enumerate(servers.values()):
        if number < _QUERIES:
            shared.append(users)
        else:
            shared[number % _QUERIES] = shared[number % _QUERIES] + users
    return [users[start : start + AT_ONCE] for users in shared for start in range(0, len(users), AT_ONCE)]


class DeviceLists:
    """The device lists of the people that an account knows."""

    def __init__(self, requests: KeyRequests, clock: ChannelClock, learn: Learn) -> None:
        self._requests = requests
        self._clock = clock
        self._learn = learn
        self._known: set[str] = set()
        self._asked: dict[str, anyio.Event] = {}
        self._query_at: dict[str, float] = {}

    def forget(self) -> None:
        """Forget all device lists."""
        self._known.clear()

    def note_changes(self, user_ids: Iterable[str]) -> None:
        """Note that the device lists of these people have changed."""
        self._known.difference_update(user_ids)

    def mark_outdated(self, user_id: str) -> None:
        """Query somebody's devices again, even if their server did not answer a moment ago."""
        self._known.discard(user_id)
        self._query_at.pop(user_id, None)

    async def wait_for_devices(self, user_ids: Iterable[str], own: str = "") -> None:
        """Wait until devices are known or servers failed. Raises ChannelError, TokenRefused, LinkBroken."""
        left = set(user_ids)
        while left := {one for one in left if one in self._asked or self._may_ask(one)}:
            mine = left - self._asked.keys()
            left -= mine  # nobody is asked for here twice, however often they change
            if mine:
                await self._ask(mine, own)
            for event in {self._asked[one] for one in left & self._asked.keys()}:
                await event.wait()

    def is_known(self, user_id: str) -> bool:
        """Return True if somebody's device list is known."""
        return user_id in self._known

    def is_open(self, user_id: str) -> bool:
        """Return True if a person's devices are unknown and may be queried now."""
        return self._may_ask(user_id)

    def _may_ask(self, user_id: str) -> bool:
        return user_id not in self._known and self._query_at.get(user_id, 0.0) <= self._clock.monotonic()

    async def _ask(self, user_ids: set[str], own: str) -> None:
        failed: list[Exception] = []
        begun = [(users, anyio.Event()) for users in group_by_server(user_ids, own)]
        for users, done in begun:
            self._asked.update(dict.fromkeys(users, done))

        async def ask(users: list[str], done: anyio.Event) -> None:
            try:
                await self._query(users)
            except Exception as error:  # noqa: BLE001 - raised below, and not wrapped in a group
                failed.append(error)
            finally:
                self._ended(users, done)

        try:
            async with anyio.create_task_group() as group:
                for users, done in begun:
                    group.start_soon(ask, users, done)
        finally:
            for users, done in begun:
                self._ended(users, done)  # those that were cancelled before they had begun
        if failed:
            raise failed[0]

    def _ended(self, users: list[str], done: anyio.Event) -> None:
        for user_id in users:
            if self._asked.get(user_id) is done:
                del self._asked[user_id]
        done.set()

    async def _query(self, users: list[str]) -> None:
        # Before the request: who changes meanwhile is asked for again.
        self._known.update(users)
        try:
            answer = await self._answer_about(users)
            if answer is None:
                for half in (users[::2], users[1::2]):
                    await self._query(half)
                return
            found = object_of(answer, "device_keys")
            for user_id in users:
                if user_id in found:
                    await self._learn(user_id, object_of(found, user_id), answer)
                    await anyio.lowlevel.checkpoint()  # many devices take their time
                    continue
                self._known.discard(user_id)  # their server did not answer ours; what is known has to do
                self._query_at[user_id] = self._clock.monotonic() + RETRY_S
                _log.info("matrix.devices_unknown", user=user_id)
        except BaseException:
            self._known.difference_update(users)
            raise

    async def _answer_about(self, users: list[str]) -> Mapping[str, Any] | None:
        """Query these people's keys; None if the answer is too long because of one of several people."""
        try:
            return await self._requests.query(users)
        except AnswerTooLong:
            if len(users) > 1:
                return None
            _log.warning("matrix.keys_too_long", user=users[0])
            return {}
