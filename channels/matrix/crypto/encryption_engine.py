"""
The encryption engine: keeps the keys of this device, and asks the server for other people's keys.
`OlmMachine` has the keys and no network, this part the reverse. It opens the machine of the login's device,
announced and signed first (`EncryptionEngine.ready`, ``own_device``). Receiving needs no network: to-device
events are digested before their messages and saved before the position (`EncryptionEngine.receive`). Before
sending, ``key_sharing`` gives the room's key. Devices of allowed people are trusted as the server names them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import structlog

from agent_core.state_folder import StateFolder, state_in
from channels.base import ChannelClock, ChannelError, ChannelUnavailable
from channels.matrix.client.homeserver import Homeserver, LinkBroken, unreachable
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.crypto.cross_signing import CrossSigning, Identities
from channels.matrix.crypto.devices import RETRY_S, DeviceLists, KeyRequests, KeyTokenRefused, StoreIsOld
from channels.matrix.crypto.key_sharing import CLAIM_LIMIT_S, KeySharing, claim_by_server
from channels.matrix.crypto.key_types import Device, UnsignedDevice
from channels.matrix.crypto.own_device import OwnDevice

if TYPE_CHECKING:
    from channels.matrix.crypto.olm_machine import OlmMachine

CRYPTO = "crypto"
_KEY_FILE = "pickle_key"
_log = structlog.get_logger(__name__)
Open = Callable[[str], "OlmMachine"]


def pickle_key(state_dir: Path | StateFolder) -> str:
    """Return the key of a folder's crypto stores, made at first use. Raises OSError."""
    state = state_in(state_dir)
    if kept := (state.read(_KEY_FILE) or b"").decode().strip():
        return kept
    made = secrets.token_urlsafe(32)
    state.write(_KEY_FILE, made.encode())
    return made


class EncryptionEngine:
    """
    Encryption for one account; ``signed_only`` excludes devices unsigned by their owners.

    ``fetch`` makes a device's file from a shared database.
    """

    def __init__(
        self,
        homeserver: Homeserver,
        login: MatrixLogin,
        state_dir: Path | StateFolder,
        open_machine: Open,
        clock: ChannelClock,
        *,
        signed_only: bool = False,
        fetch: Callable[[str], None] | None = None,
    ) -> None:
        self._homeserver = homeserver
        self._clock = clock
        self.signed_only = signed_only
        self.identities = Identities(state_dir, self._is_signature)
        self.signing = CrossSigning(homeserver, login, state_dir)
        self._requests = KeyRequests(homeserver)
        self._own = OwnDevice(homeserver, login, self._requests, self.signing, open_machine, fetch=fetch)
        self._lock = anyio.Lock()
        self._room_locks: dict[str, anyio.Lock] = {}
        self._machine: OlmMachine | None = None
        self._committed = ""
        self._lists = DeviceLists(self._requests, clock, self._learned)
        self._sharing = KeySharing(
            self._requests, self._lists, clock, trusted=self._trusted, lock_of=self._lock_of
        )
        self.to_repair = anyio.Event()
        """Set when `repair` may have something to do."""
        self._retry_at: dict[Device, float] = {}
        self._left: int | None = None
        self._kept_up = ""

    # ── life ──
    def start(self, committed: str | None) -> None:
        """Begin a run; ``committed`` is the `position` that was last committed."""
        self._committed = committed or ""
        self._lists.forget()

    async def ready(self) -> OlmMachine:
        """Return the logged-in device's machine, announced. Raises ChannelError or TokenRefused."""
        credentials = self._homeserver.credentials
        machine = self._machine
        if machine is not None and credentials is not None and _is_right(machine, credentials.device_id):
            return machine
        async with self._lock:
            try:
                return await self._announced()
            except LinkBroken as error:
                raise unreachable(error) from error
            except OSError as error:
                raise ChannelUnavailable(f"the crypto store cannot be used: {error}") from error

    async def _announced(self) -> OlmMachine:
        machine, credentials = self._machine, self._homeserver.credentials
        if machine is not None and credentials is not None:
            if _is_right(machine, credentials.device_id):
                return machine  # somebody else was quicker
            self._machine = None
            if machine.device_id == credentials.device_id:
                machine.close()
            else:
                self._own.retire(machine)
        machine = await self._own.announce(self._committed)
        self._machine = machine
        self._lists.forget()
        self._sharing.forget()
        self._left = None
        return machine

    def position(self) -> dict[str, str]:
        """The value committed beside the sync position, by which an older copy of the store is detected."""
        if self._machine is None:
            return {}
        return {CRYPTO: f"{self._machine.generation} {self._machine.device_id}"}

    def close(self) -> None:
        """Close the store."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def facts(self) -> dict[str, Any]:
        """Facts for the operator."""
        machine = self._machine
        facts: dict[str, Any] = {"encryption": "signed" if self._own.signed else "unsigned"}
        if machine is not None:
            facts |= {"device": machine.device_id, "fingerprint": machine.ed25519}
        if self._own.replaced:
            facts["device_replaced"] = self._own.replaced
        return facts

    # ── receiving ──
    def receive(self, body: JsonObject) -> int:
        """Process the keys in ``/sync``; return the number of new room keys. Raises ChannelUnavailable."""
        machine = self._machine
        if machine is None:
            raise ChannelUnavailable("encryption is not ready")
        changed = object_of(body, "device_lists").get("changed")
        self._lists.note_changes(one for one in _list(changed) if isinstance(one, str))
        counts = body.get("device_one_time_keys_count")
        if isinstance(counts, Mapping):
            left = counts.get("signed_curve25519", 0)
            self._left = left if isinstance(left, int) else None
        events = [
            event for event in _list(object_of(body, "to_device").get("events")) if isinstance(event, Mapping)
        ]
        try:
            found = machine.receive(events)
            while machine.robbed:
                self._lists.mark_outdated(machine.robbed.pop())
            return found
        except OSError as error:
            self._machine = None  # what is in memory is ahead of what is on disk
            machine.close()
            raise ChannelUnavailable(str(error)) from error

    def decrypt(self, room_id: str, event: JsonObject) -> dict[str, Any]:
        """Decrypt an event; raises `NoKey` or `NotReadable`."""
        if self._machine is None:
            raise ChannelUnavailable("encryption is not ready")
        clear = self._machine.decrypt(room_id, event)
        sender, session_id = text_of(event, "sender"), text_of(object_of(event, "content"), "session_id")
        if not self.has_key(sender, room_id, session_id):
            raise UnsignedDevice(session_id)
        return clear

    def has_key(self, sender: str, room_id: str, session_id: str) -> bool:
        """Return True if a room key is present, and from a device whose keys are believed."""
        machine = self._machine
        if machine is None or not machine.has_key(room_id, session_id):
            return False
        if not self.signed_only:
            return True
        return self.identities.is_signed(sender, machine.device_of(sender, room_id, session_id))

    async def maintain(
        self, *, rooms: Iterable[str] = (), waiting: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Upload one-time keys, remove old keys except ``waiting`` ones; our server only. Never raises."""
        machine = self._machine
        if machine is None:
            return
        try:
            await self._requests.upload(machine, self._left)
            self._left = None
            today = self._clock.now().date().isoformat()
            if today != self._kept_up:
                pruned = machine.upkeep(today, waiting=waiting(), rooms=rooms)
                self._kept_up = today
                _log.info("matrix.keys_pruned", pruned=pruned, left=len(machine.room_keys))
        except StoreIsOld:
            # The next `ready` finds the store behind what it should be.
            self._committed = f"{machine.generation + 1} {machine.device_id}"
            self._machine = None
            machine.close()
        except (ChannelError, LinkBroken, KeyTokenRefused, OSError) as error:
            _log.warning("matrix.keys_deferred", error=str(error) or type(error).__name__)

    async def repair(self) -> None:
        """Restart broken sessions and send owed keys; slow, as other servers take part. Never raises."""
        machine = self._machine
        if machine is None:
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._sharing.share_late, machine)
            group.start_soon(self._unwedge, machine)

    async def _unwedge(self, machine: OlmMachine) -> None:
        now = self._clock.monotonic()
        self._retry_at = {one: until for one, until in self._retry_at.items() if until > now}
        wedged = [one for one in machine.broken_devices() if one not in self._retry_at]
        if not wedged:
            return
        self._retry_at.update(dict.fromkeys(wedged, now + RETRY_S))
        try:
            await claim_by_server(self._requests, machine, wedged, CLAIM_LIMIT_S)
            bodies = machine.take_outgoing()
            if bodies:
                await self._requests.to_device("m.room.encrypted", bodies)
        except Exception as error:  # noqa: BLE001 - the store may have been closed meanwhile
            _log.warning("matrix.sessions_not_repaired", error=str(error) or type(error).__name__)

    # ── sending ──
    async def encrypt(
        self, room_id: str, kind: str, content: JsonObject, members: Iterable[str]
    ) -> dict[str, Any]:
        """Encrypt an event for everybody in a room. Raises ChannelError or TokenRefused."""
        machine = await self.ready()
        try:
            async with self._lock_of(room_id):
                await self._sharing.share(machine, room_id, sorted(set(members)))
                if self._sharing.has_pending_keys:
                    self.to_repair.set()
                return machine.encrypt(room_id, kind, content)
        except LinkBroken as error:
            raise unreachable(error) from error
        except OSError as error:
            raise ChannelUnavailable(f"the crypto store cannot be used: {error}") from error

    async def learn_devices(self, user_ids: Iterable[str]) -> None:
        """Ask for the unknown or outdated device lists."""
        machine = await self.ready()
        await self._lists.wait_for_devices(user_ids, machine.user_id)

    def is_known(self, user_id: str) -> bool:
        """Return True if somebody's device list is known."""
        return self._lists.is_known(user_id)

    def fingerprint(self, user_id: str, device_id: str) -> str | None:
        """The Ed25519 key of a device, if it is known."""
        return self._machine.fingerprint(user_id, device_id) if self._machine is not None else None

    def mark_outdated(self, user_id: str) -> None:
        """Query somebody's devices again with the next `learn_devices`."""
        self._lists.mark_outdated(user_id)

    async def reset_device(self, why: str) -> str:
        """Continue as a new device, signed by the same identity; return its id. Raises as `encrypt`."""
        machine = await self.ready()
        async with self._lock:
            if self._machine is machine:
                self._machine = None
                try:
                    await self._own.replace(machine, why)
                except LinkBroken as error:
                    raise unreachable(error) from error
        return (await self.ready()).device_id

    async def send_to_device(self, kind: str, user_id: str, device_id: str, content: JsonObject) -> None:
        """Send something to one device, in clear."""
        await self._requests.to_device(kind, {user_id: {device_id: content}})

    async def _learned(self, user_id: str, devices: JsonObject, answer: JsonObject) -> None:
        machine = self._machine
        if machine is None:
            raise ChannelUnavailable("encryption is not ready")
        for some in machine.portions(user_id, devices):
            machine.learn_devices(user_id, some)
            await anyio.lowlevel.checkpoint()
        kept = {one.device_id for one in machine.devices_of([user_id])}
        own = {machine.device_id} if user_id == machine.user_id else set()
        await self.identities.learn(user_id, answer, kept | own)

    def _is_signature(self, key: str, value: bytes, signature: str) -> bool:
        return self._machine is not None and self._machine.is_signature(key, value, signature)

    def _trusted(self, devices: set[Device]) -> set[Device]:
        if not self.signed_only:
            return devices
        return {one for one in devices if self.identities.is_signed(one.user_id, one.device_id)}

    def _lock_of(self, room_id: str) -> anyio.Lock:
        return self._room_locks.setdefault(room_id, anyio.Lock())


def _is_right(machine: OlmMachine, device_id: str) -> bool:
    """Return True if the machine is of that device and matches the store."""
    return machine.device_id == device_id and not machine.is_stale


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
