"""
Shares a room's key with the devices of everybody in the room. Outdated device lists are queried, sessions
claimed, then the key is sent, for a few devices at a time. Unreachable devices are retried later, as one must
not mute the bot. Other servers have `OTHERS_LIMIT_S` per message, and after a timeout nothing for `RETRY_S`;
people left out are *owed* the key as it was before the message, and `share_late` sends it beside the sending.
A device that gets no key because its owner has not signed it is told so (``m.room_key.withheld``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from agent_core.bounded import Bounded
from channels.base import ChannelClock
from channels.matrix.crypto.devices import AT_ONCE, RETRY_S, DeviceLists, KeyRequests, group_by_server
from channels.matrix.crypto.key_types import Device, server_of

if TYPE_CHECKING:
    from channels.matrix.crypto.olm_machine import OlmMachine

OTHERS_LIMIT_S = 4.0
CLAIM_LIMIT_S = 30.0
_log = structlog.get_logger(__name__)


async def claim_by_server(
    requests: KeyRequests, machine: OlmMachine, devices: Iterable[Device], limit_s: float | None = None
) -> set[str]:
    """Claim sessions per server, the rest combined; return late users. Raises if any claim failed."""
    by_user: dict[str, list[Device]] = {}
    for device in devices:
        by_user.setdefault(device.user_id, []).append(device)
    late: set[str] = set()

    async def claim(users: list[str]) -> None:
        with anyio.move_on_after(limit_s) as limit:
            await requests.claim(machine, [device for one in users for device in by_user[one]])
        if limit.cancelled_caught:
            late.update(users)

    await _all_of(partial(claim, users) for users in group_by_server(by_user))
    return late


class KeySharing:
    """Shares the room keys of one account with ``trusted`` devices on ``lists``."""

    def __init__(
        self,
        requests: KeyRequests,
        lists: DeviceLists,
        clock: ChannelClock,
        *,
        trusted: Callable[[set[Device]], set[Device]],
        lock_of: Callable[[str], anyio.Lock],
    ) -> None:
        self._requests = requests
        self._lists = lists
        self._clock = clock
        self._trusted = trusted
        self._lock_of = lock_of
        self._retry_at: dict[Device, float] = {}
        self._slow: dict[str, float] = {}
        """Servers that were late, and until when nobody waits for them."""
        self._owed: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        """By room and person, room keys by their session."""
        self._refused = Bounded[str, tuple[str, set[Device]]](1000)
        """By room, a session and the devices that were told that they do not get its key."""

    @property
    def has_pending_keys(self) -> bool:
        """Return True if keys are still to be sent."""
        return bool(self._owed)

    def forget(self) -> None:
        """Note that the device was replaced: nobody has to get keys of the old one."""
        self._owed.clear()

    async def share(self, machine: OlmMachine, room_id: str, users: list[str]) -> None:
        """Share the room's key, under its lock. Raises ChannelError, TokenRefused or LinkBroken."""
        near = [one for one in users if server_of(one) == server_of(machine.user_id)]
        far = [one for one in users if one not in set(near)]
        await self._lists.wait_for_devices(near, machine.user_id)
        hurried = [one for one in far if not self._is_slow(one)]
        with anyio.move_on_after(OTHERS_LIMIT_S) as limit:
            await self._lists.wait_for_devices(hurried, machine.user_id)
        late = {one for one in far if self._is_slow(one) and not self._lists.is_known(one)}
        if limit.cancelled_caught:
            late |= self._were_late(one for one in hurried if self._lists.is_open(one))
        there = machine.devices_of(users)
        devices = self._trusted(there)
        now = self._clock.monotonic()
        self._retry_at = {one: until for one, until in self._retry_at.items() if until > now}
        missing = [one for one in machine.strangers(devices) if one not in self._retry_at]
        late |= {one.user_id for one in missing if one.user_id not in near and self._is_slow(one.user_id)}
        asked = [one for one in missing if one.user_id not in late]
        await claim_by_server(self._requests, machine, [one for one in asked if one.user_id in near])
        too_late = await claim_by_server(
            self._requests, machine, [one for one in asked if one.user_id not in near], OTHERS_LIMIT_S
        )
        late |= self._were_late(too_late)
        for device in machine.strangers(asked):
            if device.user_id not in late:
                self._retry_at[device] = now + RETRY_S
                _log.info("matrix.device_unreachable", user=device.user_id, device=device.device_id)
        while keys := machine.room_key_for(room_id, devices, at_most=AT_ONCE):
            await self._send(keys)
            machine.note_key_delivery(room_id, keys)
        await self._refuse(machine, room_id, there - devices)
        self._note_owed(machine, room_id, late, users)

    async def _refuse(self, machine: OlmMachine, room_id: str, devices: set[Device]) -> None:
        """Tell devices that get no key why, once; their clients show it in place of the message."""
        if not devices:
            return
        key = machine.current_key(room_id)
        session_id = key["session_id"]
        known, refused = self._refused.get(room_id, ("", set[Device]()))
        content = {
            "algorithm": key["algorithm"],
            "room_id": room_id,
            "session_id": session_id,
            "sender_key": machine.curve25519,
            "code": "m.unverified",
            "reason": "This session is not verified by its owner.",
        }
        left = sorted(devices - refused if known == session_id else devices)
        for start in range(0, len(left), AT_ONCE):
            bodies: dict[str, dict[str, Any]] = {}
            for device in left[start : start + AT_ONCE]:
                bodies.setdefault(device.user_id, {})[device.device_id] = content
            await self._requests.to_device("m.room_key.withheld", bodies)
        self._refused[room_id] = session_id, devices

    async def share_late(self, machine: OlmMachine) -> None:
        """Share the keys that are still owed, as far as those people's servers respond now. Never raises."""
        people: dict[str, set[str]] = {}
        for _, user_id in self._owed:
            people.setdefault(server_of(user_id), set()).add(user_id)
        slots = anyio.CapacityLimiter(8)

        async def serve(users: set[str]) -> None:
            try:
                async with slots:
                    with anyio.move_on_after(CLAIM_LIMIT_S):
                        await self._give_late_to(machine, users)
            except Exception as error:  # noqa: BLE001 - the store may have been closed meanwhile
                _log.warning("matrix.keys_not_given", error=str(error) or type(error).__name__)

        before = {key: set(keys) for key, keys in self._owed.items()}
        async with anyio.create_task_group() as servers:
            for users in people.values():
                servers.start_soon(serve, users)
        for (room_id, user_id), sessions in before.items():
            for session_id in sessions:
                if self._paid(room_id, user_id, session_id) is not None:
                    _log.info("matrix.person_unreachable", room=room_id, user=user_id)

    async def _give_late_to(self, machine: OlmMachine, users: set[str]) -> None:
        await self._lists.wait_for_devices(users, machine.user_id)
        devices = self._trusted(machine.devices_of(users))
        if missing := machine.strangers(devices):
            await self._requests.claim(machine, missing)
        for room_id, user_id in [key for key in self._owed if key[1] in users]:
            async with self._lock_of(room_id):
                theirs = {one for one in devices if one.user_id == user_id}
                for session_id in list(self._owed.get((room_id, user_id), {})):
                    key = self._paid(room_id, user_id, session_id)
                    if key is not None:
                        await self._give_this(machine, room_id, key, theirs)

    async def _give_this(
        self, machine: OlmMachine, room_id: str, key: dict[str, Any], devices: set[Device]
    ) -> None:
        left = sorted(devices - set(machine.strangers(devices)))
        for start in range(0, len(left), AT_ONCE):
            keys = machine.wrap_key(key, left[start : start + AT_ONCE])
            await self._send(keys)
            machine.note_key_delivery(room_id, keys, session_id=key["session_id"])
            _log.info("matrix.key_given_late", room=room_id, devices=len(keys))

    async def _send(self, keys: dict[Device, dict[str, Any]]) -> None:
        bodies: dict[str, dict[str, Any]] = {}
        for device, body in keys.items():
            bodies.setdefault(device.user_id, {})[device.device_id] = body
        await self._requests.to_device("m.room.encrypted", bodies)

    def _is_slow(self, user_id: str) -> bool:
        return self._slow.get(server_of(user_id), 0.0) > self._clock.monotonic()

    def _were_late(self, users: Iterable[str]) -> set[str]:
        late = set(users)
        now = self._clock.monotonic()
        self._slow = {name: until for name, until in self._slow.items() if until > now}
        for server in {server_of(one) for one in late}:
            self._slow[server] = now + RETRY_S
            _log.info("matrix.server_slow", server=server, pause_s=RETRY_S)
        return late

    def _note_owed(self, machine: OlmMachine, room_id: str, late: set[str], users: list[str]) -> None:
        for _, user_id in [key for key in self._owed if key[0] == room_id and key[1] not in set(users)]:
            del self._owed[room_id, user_id]
        key = machine.current_key(room_id) if late else None
        for user_id in sorted(late):
            if key is not None and len(self._owed) < 1000:
                sessions = self._owed.setdefault((room_id, user_id), {})
                sessions.setdefault(key["session_id"], key)  # the first: it reads the most
                while len(sessions) > 3:
                    sessions.pop(next(iter(sessions)))

    def _paid(self, room_id: str, user_id: str, session_id: str) -> dict[str, Any] | None:
        """Somebody is not owed this any more; returns what it was."""
        sessions = self._owed.get((room_id, user_id), {})
        key = sessions.pop(session_id, None)
        if not sessions:
            self._owed.pop((room_id, user_id), None)
        return key


async def _all_of(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make all calls side by side; then raise what the first has raised that failed."""
    failed: list[Exception] = []

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception as error:  # noqa: BLE001 - raised below, and not wrapped in a group
            failed.append(error)

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(make, call)
    if failed:
        raise failed[0]
