"""
Uses nio's private parts for encryption: `OlmMachine` holds the keys of one device. No network. Imported late.
Only nio's ``Olm`` and store are used, with deviations tested in
``tests/unit/channels/matrix/test_olm_machine.py``: the account is saved before its one-time keys are uploaded
(a crash would leave unusable ones); a room key is found by session id alone and must be the sender's; a
device counts only if its Curve25519 key is its own, proven by its room keys or first seen, as a claimed
foreign key would block its owner; missing devices are forgotten; verifications and key requests never reach
nio. What is encrypted escapes the server's permission checks, so only events that anybody may send count.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
import vodozemac
from cachetools import LRUCache
from nio.events import OlmEvent, RoomKeyEvent
from peewee import OperationalError  # type: ignore[import-untyped] # it has no types

from agent_core.state_folder import RowStore
from channels.matrix.crypto.key_store_copy import fetch
from channels.matrix.crypto.key_types import Device, ForeignKey, MustBeUnencrypted, NoKey, NotReadable
from channels.matrix.crypto.olm_store import KeyStore, owner_of, store_path
from channels.matrix.events.polls import ENDS, RESPONSES, STARTS

MEGOLM = "m.megolm.v1.aes-sha2"
_KEYS_KEPT = 50
MAX_DEVICES = 200
"""Of one person. Each costs milliseconds, and anybody's server can name any number."""
_NEW_AT_ONCE = 25
_log = structlog.get_logger(__name__)
_MEANT = frozenset({"m.room.message", "m.sticker", "m.reaction", *STARTS, *RESPONSES, *ENDS})


class OlmMachine(KeyStore):
    """The keys of one device, in ``folder`` and ``rows``. Raises StoreBroken (lost) or OSError."""

    def __init__(
        self, folder: Path, user_id: str, device_id: str, pickle_key: str, rows: RowStore | None = None
    ) -> None:
        super().__init__(folder, user_id, device_id, pickle_key, rows)
        self.undigested = 0
        self._olm.message_index_store = LRUCache(5000)
        self._given: dict[str, set[Device]] = {}
        self._learned: dict[str, bytes | None] = {}
        """By person, the digest of the devices that were learned last."""
        self._holders = {one.curve25519: one for one in self._olm.device_store if not one.deleted}
        """By Curve25519 key, the device that has it."""
        self.robbed: set[str] = set()
        """People whose devices are to be learned anew: somebody else's had the key of one of them."""

    # ── the device itself ──
    @property
    def ed25519(self) -> str:
        """The device's fingerprint key."""
        return str(self._olm.account.identity_keys["ed25519"])

    @property
    def curve25519(self) -> str:
        """The key with which the device starts sessions."""
        return str(self._olm.account.identity_keys["curve25519"])

    @property
    def shared(self) -> bool:
        """Return True if the server has the device's keys."""
        return bool(self._olm.account.shared)

    @shared.setter
    def shared(self, value: bool) -> None:
        with self.changing():
            self._olm.account.shared = value
            self._olm.save_account()

    def new_keys(self, count: int | None) -> dict[str, Any] | None:
        """Return keys to upload, if any; ``count`` one-time keys remain (None: unknown)."""
        if self.shared and (count is None or count >= 25):
            return None
        with self.changing():
            self._olm.uploaded_key_count = min(count or 0, _KEYS_KEPT - 1)
            body: dict[str, Any] = self._olm.share_keys()
            self._olm.save_account()
        return body

    def note_upload(self) -> None:
        """Note that the server accepted what `new_keys` returned."""
        with self.changing():
            self._olm.account.shared = True
            self._olm.account.mark_keys_as_published()
            self._olm.save_account()

    # ── what others send ──
    def receive(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Process the messages to this device; returns how many room keys they brought."""
        found = 0
        encrypted = [event for event in events if event.get("type") == "m.room.encrypted"]
        if not encrypted:
            return 0
        asked, begun = [], []
        with self.changing(), self._account_saved_once():
            for event in encrypted:
                try:
                    parsed = OlmEvent.from_dict(copy.deepcopy(dict(event)))
                    if isinstance(parsed, OlmEvent):
                        asked.append((parsed.sender_key, parsed.sender))
                        before = len(self._olm.session_store[parsed.sender_key])
                        found += isinstance(self._digest(parsed), RoomKeyEvent)
                        begun += asked[-1:] * (len(self._olm.session_store[parsed.sender_key]) > before)
                except OperationalError:
                    raise
                except Exception as error:  # noqa: BLE001 - any account can send any garbage
                    self.undigested += 1
                    _log.warning("matrix.event_undigested", where="to_device", error=type(error).__name__)
            self.remove_excess(begun, dict.fromkeys(asked))
        self._olm.received_key_requests.clear()
        return found

    def _digest(self, event: Any) -> Any:
        digested = self._olm.handle_to_device_event(event)
        if isinstance(digested, RoomKeyEvent):
            key = self.room_keys.get(digested.room_id, digested.sender_key, digested.session_id)
            if key is not None:
                self.room_keys.set_owner(key, digested.sender)
                self._is_held_by(digested.sender, key)
        return digested

    @contextmanager
    def _account_saved_once(self) -> Iterator[None]:
        """Inside, the account is not written for each session that begins: with many keys that takes long."""
        saved: list[None] = []
        self._olm.save_account = lambda: saved.append(None)
        try:
            yield
        finally:
            del self._olm.save_account
        if saved:
            self._olm.save_account()

    def _is_held_by(self, user_id: str, key: Any) -> None:
        """Note who has the Curve25519 key that a room key came with: no other device has it any more."""
        holder = self._holders.get(key.sender_key)
        if holder is None or (holder.user_id, holder.ed25519) == (user_id, key.ed25519):
            return
        _log.warning("matrix.device_key_stolen", user=holder.user_id, device=holder.id, of=user_id)
        holder.deleted = True
        del self._holders[key.sender_key]
        self.forget_devices(holder.user_id)
        self.robbed.add(user_id)

    def has_key(self, room_id: str, session_id: str) -> bool:
        """Return True if a room key is present."""
        return bool(self.room_keys.keys_of(room_id, session_id))

    def decrypt(self, room_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
        """Decrypt an event. Raises NoKey (not here yet) or NotReadable (never)."""
        content = event.get("content")
        session_id = content.get("session_id") if isinstance(content, Mapping) else None
        ciphertext = content.get("ciphertext") if isinstance(content, Mapping) else None
        if not isinstance(content, Mapping) or content.get("algorithm") != MEGOLM:
            raise NotReadable("algorithm")
        if not isinstance(session_id, str) or not isinstance(ciphertext, str):
            raise NotReadable("malformed")
        session = self._session(room_id, session_id, str(event.get("sender")))
        try:
            plaintext, index = session.decrypt(ciphertext)
        except (vodozemac.MegolmDecryptionException, vodozemac.DecodeException, ValueError) as error:
            if session.first_known_index > 0 and "index" in str(error).lower():
                # A key from a later point; one from an earlier point may still come.
                raise NoKey(session_id) from error
            raise NotReadable(type(error).__name__) from error
        seen = SimpleNamespace(
            sender_key=session.sender_key,
            session_id=session_id,
            event_id=event.get("event_id"),
            server_timestamp=event.get("origin_server_ts"),
        )
        if not self._olm.message_index_ok(index, seen):
            raise NotReadable("replayed")
        self.room_keys.mark_used(session_id)
        return decrypted_event(room_id, event, content, plaintext)

    def _session(self, room_id: str, session_id: str, sender: str) -> Any:
        """The room key, of those that fit the sender's devices the one that reads most."""
        refused: NotReadable | None = None
        fitting = []
        for session in self.room_keys.keys_of(room_id, session_id):
            try:
                self._check_owner(session, sender)
                fitting.append(session)
            except NotReadable as error:
                refused = error
        if fitting:
            return min(fitting, key=lambda one: int(one.first_known_index))
        raise refused or NoKey(session_id)

    def _check_owner(self, session: Any, sender: str) -> None:
        owner = owner_of(session)
        if owner not in ("", sender):
            raise ForeignKey(str(session.id))
        device = self._olm.device_store.device_from_sender_key(sender, session.sender_key)
        if device is not None:
            if device.ed25519 != session.ed25519:
                raise NotReadable("keys_mismatched")
            return
        if owner:
            return  # whatever others say of their devices
        own = session.sender_key == self._olm.account.identity_keys["curve25519"]
        if own and sender == self._olm.user_id:
            return
        if own or any(device.curve25519 == session.sender_key for device in self._olm.device_store):
            raise ForeignKey(str(session.id))

    # ── other people's devices ──
    def learn_devices(self, user_id: str, devices: Mapping[str, Any]) -> None:
        """
        Learn a person's devices from a key query, well-formed ones up to `MAX_DEVICES`.

        Unchanged ones cost nothing: Synapse reports a change for every active sender
        (element-hq/synapse#6162).
        """
        digest = _digest_of(devices)
        if digest is not None and self._learned.get(user_id) == digest:
            return
        known = {device.id for device in self._olm.device_store.active_user_devices(user_id)}
        some = sorted(devices, key=lambda key: key not in known)[:MAX_DEVICES]
        if len(devices) > MAX_DEVICES:
            _log.warning("matrix.devices_left_out", user=user_id, devices=len(devices), kept=MAX_DEVICES)
        sane = {key: _signed_part(devices[key]) for key in some if _is_device(key, devices[key])}
        before = {one.curve25519 for one in self._olm.device_store.active_user_devices(user_id)}
        for key, device in list(sane.items()):
            if self._is_taken(user_id, key, device["keys"]):
                if (user_id, key) != (self._olm.user_id, self._olm.device_id):  # our own is known
                    _log.warning("matrix.device_key_taken", user=user_id, device=key)
                del sane[key]
                digest = None  # it may be theirs when they come again
        with self.changing():
            self._olm._handle_key_query(SimpleNamespace(device_keys={user_id: sane}))  # noqa: SLF001 - as above
            self.forget_devices(user_id)
            self.remove_excess([], [])
        active = {one.curve25519: one for one in self._olm.device_store.active_user_devices(user_id)}
        for gone in before - active.keys():
            self._holders.pop(gone, None)
        self._holders |= active
        self._learned[user_id] = digest

    def _is_taken(self, user_id: str, device_id: str, keys: Mapping[str, str]) -> bool:
        """Return True if the device's Curve25519 key is known as another device's."""
        curve, fingerprint = keys[f"curve25519:{device_id}"], keys[f"ed25519:{device_id}"]
        if curve == self._olm.account.identity_keys["curve25519"]:
            return True
        holder = self._holders.get(curve)
        if holder is not None:
            return (holder.user_id, holder.ed25519) != (user_id, fingerprint)
        proved = self.room_keys.senders(curve)
        return bool(proved) and (user_id, fingerprint) not in proved

    def portions(self, user_id: str, devices: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield growing portions of a person's devices, each with a few unknown ones; the last has all."""
        known = {device.id for device in self._olm.device_store.active_user_devices(user_id)}
        order = sorted(devices, key=lambda key: key not in known)
        first = len(known & devices.keys())
        for end in range(first + _NEW_AT_ONCE, min(len(order), MAX_DEVICES), _NEW_AT_ONCE):
            yield {key: devices[key] for key in order[:end]}
        yield devices

    def devices_of(self, user_ids: Iterable[str]) -> set[Device]:
        """Every device of these people, except this one."""
        return {
            Device(user_id, device.id, device.curve25519)
            for user_id in user_ids
            for device in self._olm.device_store.active_user_devices(user_id)
            if (user_id, device.id) != (self.user_id, self.device_id)
        }

    def fingerprint(self, user_id: str, device_id: str) -> str | None:
        """The Ed25519 key of a device, if it is known."""
        for device in self._olm.device_store.active_user_devices(user_id):
            if device.id == device_id:
                return str(device.ed25519)
        return None

    def strangers(self, devices: Iterable[Device]) -> list[Device]:
        """The devices among these that have no session yet."""
        return [device for device in devices if not self._olm.session_store.get(device.curve25519)]

    def broken_devices(self) -> list[Device]:
        """Devices whose session is broken and must be restarted."""
        wedged = [one for one in self._olm.wedged_devices if not one.deleted]
        return [Device(one.user_id, one.id, one.curve25519) for one in wedged]

    def start_sessions(self, keys: Mapping[str, Any]) -> None:
        """Start sessions from an answer to a claim of one-time keys."""
        with self.changing(), self._account_saved_once():
            for user_id, devices in keys.items():
                for device_id, key in devices.items() if isinstance(devices, Mapping) else ():
                    known = self._olm.device_store[user_id].get(device_id)
                    if known is None or known.deleted:
                        continue  # nobody has asked for it
                    try:
                        one = SimpleNamespace(one_time_keys={user_id: {device_id: copy.deepcopy(key)}})
                        self._olm._handle_key_claiming(one)  # noqa: SLF001 - see the module
                    except OperationalError:
                        raise
                    except Exception as error:  # noqa: BLE001 - other people's devices made this
                        _log.warning("matrix.event_undigested", where="claim", error=type(error).__name__)

    def take_outgoing(self) -> dict[str, dict[str, Any]]:
        """The messages for devices whose sessions were restarted: user → device → content."""
        messages, self._olm.outgoing_to_device_messages = self._olm.outgoing_to_device_messages, []
        bodies: dict[str, dict[str, Any]] = {}
        for message in messages:
            if message.type == "m.room.encrypted":  # requests for room keys go unanswered anyway
                bodies.setdefault(message.recipient, {})[message.recipient_device] = message.content
        return bodies

    # ── what we send ──
    def room_key_for(
        self, room_id: str, devices: set[Device], *, at_most: int | None = None
    ) -> dict[Device, dict[str, Any]]:
        """
        The room's key, encrypted for those of the devices that do not have it yet, or for some of them.

        A new key is made when the old one is used up or somebody who has it is gone.
        """
        session = self._olm.outbound_group_sessions.get(room_id)
        if session is None or session.expired or self._given.get(room_id, set()) - devices:
            with self.changing():
                self._olm.create_outbound_group_session(room_id)
            session = self._olm.outbound_group_sessions[room_id]
            self._given[room_id] = set()
        wanting = [device for device in devices - self._given[room_id] if not self.strangers([device])]
        wanting = wanting[:at_most]
        if not wanting:
            return {}
        return self.wrap_key(self.current_key(room_id), wanting)

    def current_key(self, room_id: str) -> dict[str, Any]:
        """The room's key for what is encrypted from now on."""
        session = self._olm.outbound_group_sessions[room_id]
        return {
            "algorithm": MEGOLM,
            "room_id": room_id,
            "session_id": session.id,
            "session_key": session.session_key,
        }

    def wrap_key(self, key: Mapping[str, Any], devices: Iterable[Device]) -> dict[Device, dict[str, Any]]:
        """A room's key, encrypted for devices that have a session."""
        bodies = {}
        with self.changing():
            for device in devices:
                theirs = self._olm.device_store[device.user_id][device.device_id]
                olm = self._olm.session_store.get(device.curve25519)
                bodies[device] = self._olm._olm_encrypt(olm, theirs, "m.room_key", dict(key))  # noqa: SLF001 - as above
        return bodies

    def note_key_delivery(self, room_id: str, devices: Iterable[Device], *, session_id: str = "") -> None:
        """Note that these devices got the room's key; ``session_id`` if it may be an older one."""
        if session_id in ("", self._olm.outbound_group_sessions[room_id].id):
            self._given.setdefault(room_id, set()).update(devices)

    def encrypt(self, room_id: str, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Encrypt an event with the room's key; its relation to others must stay outside."""
        self._olm.outbound_group_sessions[room_id].mark_as_shared()
        inner = {key: value for key, value in content.items() if key != "m.relates_to"}
        covered: dict[str, Any] = self._olm.group_encrypt(room_id, {"type": kind, "content": inner})
        if "m.relates_to" in content:
            covered["m.relates_to"] = content["m.relates_to"]
        return covered

    def sign(self, value: Mapping[str, Any]) -> str:
        """The device's signature of a JSON object."""
        return str(self._olm.sign_json(dict(value)))

    def is_signature(self, key: str, value: bytes, signature: str) -> bool:
        """Return True if an Ed25519 signature is valid; malformed input is not."""
        try:
            theirs = vodozemac.Ed25519Signature.from_base64(signature)
            vodozemac.Ed25519PublicKey.from_base64(key).verify_signature(value, theirs)
        except Exception:  # noqa: BLE001 - other people's servers made this
            return False
        return True

    def device_of(self, user_id: str, room_id: str, session_id: str) -> str:
        """The device of a person that made a room key; empty if no known one did."""
        for session in self.room_keys.keys_of(room_id, session_id):
            device = self._olm.device_store.device_from_sender_key(user_id, session.sender_key)
            if device is not None and device.ed25519 == session.ed25519:
                return str(device.id)
        return ""

    def new_sas(self) -> Any:
        """Start our side of an emoji verification."""
        return vodozemac.Sas()

    def combine_keys(self, sas: Any, their_key: str) -> Any:
        """Combine both sides of an emoji verification; raises `NotReadable` if theirs is not a key."""
        try:
            return sas.diffie_hellman(vodozemac.Curve25519PublicKey.from_base64(their_key))
        except Exception as error:
            raise NotReadable(type(error).__name__) from error


def opener(
    folder: Path, user_id: str, pickle_key: str, rows: RowStore | None = None
) -> Callable[[str], OlmMachine]:
    """A function that opens the machine of a device."""
    return lambda device_id: OlmMachine(folder, user_id, device_id, pickle_key, rows)


def fetcher(folder: Path, rows: RowStore) -> Callable[[str], None]:
    """A function that makes a device's file from the database; for a worker thread."""
    return lambda device_id: fetch(store_path(folder, device_id), rows, device_id)


def _digest_of(devices: Mapping[str, Any]) -> bytes | None:
    """Stands for a list of devices; None for one that is nested too deeply."""
    try:
        return hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).digest()
    except RecursionError:
        return None


def _signed_part(device: Mapping[str, Any]) -> dict[str, Any]:
    """A device without its name, which anybody's server makes as long as it likes."""
    return copy.deepcopy({key: value for key, value in device.items() if key != "unsigned"})


def _is_device(device_id: str, value: Any) -> bool:
    """Return True if a device's keys are well-formed, so that nio does not fail on it."""
    keys = value.get("keys") if isinstance(value, Mapping) else None
    signatures = value.get("signatures") if isinstance(value, Mapping) else None
    if not isinstance(keys, Mapping) or not isinstance(signatures, Mapping):
        return False
    if not isinstance(value.get("unsigned", {}), Mapping):
        return False
    try:
        vodozemac.Ed25519PublicKey.from_base64(keys[f"ed25519:{device_id}"])
        vodozemac.Curve25519PublicKey.from_base64(keys[f"curve25519:{device_id}"])
        signed = signatures[value["user_id"]][f"ed25519:{device_id}"]
        vodozemac.Ed25519Signature.from_base64(signed)
    except Exception:  # noqa: BLE001 - whatever it is, it is no device
        return False
    return bool(value["device_id"] == device_id)


def decrypted_event(
    room_id: str, event: Mapping[str, Any], content: Mapping[str, Any], plaintext: str
) -> dict[str, Any]:
    """Build the decrypted event. Raises MustBeUnencrypted (meaningless if encrypted) or NotReadable."""
    try:
        inner = json.loads(plaintext) if len(plaintext) <= 200_000 else None
    except (ValueError, RecursionError) as error:
        raise NotReadable("malformed") from error
    if not isinstance(inner, dict) or inner.get("room_id") != room_id:
        raise NotReadable("room_mismatched")
    found = inner.get("content")
    if not isinstance(inner.get("type"), str) or not isinstance(found, dict):
        raise NotReadable("malformed")
    if inner["type"] not in _MEANT and not inner["type"].startswith("m.key.verification."):
        raise MustBeUnencrypted(inner["type"][:100])
    if "m.relates_to" in content and "m.relates_to" not in found:
        found["m.relates_to"] = content["m.relates_to"]
    return {**event, "type": inner["type"], "content": found}
