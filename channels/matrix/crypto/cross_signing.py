"""
Cross-signing: the account's own identity, its signature of this device, and the identities of others. An
identity that replaced ours is replaced back only if we have no secrets, as two devices that replace each
other never end. Other people's devices are checked against their identity, since a homeserver could add some;
the setting ``devices`` decides what unsigned ones get. Base64 has no padding.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import structlog

from agent_core.state_folder import StateFolder, StateUnreachable, state_in
from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import CLIENT, Homeserver, channel_error
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.client.matrix_login import ApprovalNeeded, MatrixLogin
from channels.matrix.crypto.key_types import excess_items

if TYPE_CHECKING:
    from channels.matrix.crypto.olm_machine import OlmMachine

_FILE = "cross_signing.json"
_ROLES = ("master", "self_signing", "user_signing")
_PICKLE_KEY = b"\0" * 32
"""The file's mode protects the secrets; encrypting them with a key that lies beside them would not."""
_log = structlog.get_logger(__name__)


def encode_unpadded_base64(raw: bytes) -> str:
    """Base64 as Matrix writes it."""
    return base64.b64encode(raw).decode().rstrip("=")


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of an object for signing: without signatures, sorted, without blanks."""
    if isinstance(value, Mapping):
        value = {key: part for key, part in value.items() if key not in ("signatures", "unsigned")}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


class CrossSigning:
    """The account's identity."""

    def __init__(self, homeserver: Homeserver, login: MatrixLogin, state_dir: Path | StateFolder) -> None:
        self._homeserver = homeserver
        self._login = login
        self._state = state_in(state_dir)
        self.master = ""
        """The public master key, once it is published."""

    async def ensure(self, machine: OlmMachine, published: JsonObject) -> bool:
        """
        Ensure that a published identity has signed this device (keys uploaded); False is logged.

        ``published`` is the server's answer to our key query. Raises ChannelUnavailable, LinkBroken, or
        OSError for unsaved secrets.
        """
        user_id = machine.user_id
        theirs = public_key(object_of(object_of(published, "master_keys"), user_id))
        kept = self._load()
        fresh = kept is None
        keys = kept or {role: _Key() for role in _ROLES}
        if not fresh and theirs and theirs != keys["master"].public:
            _log.error(
                "matrix.identity_foreign",
                hint="the account's cross-signing was reset elsewhere; delete cross_signing.json in the "
                "state folder to let squidbot create a new identity",
            )
            return False
        if not theirs or fresh:
            if theirs and not self._login.can_request:
                _log.error(
                    "matrix.identity_foreign",
                    hint="the account has a cross-signing identity that was made elsewhere; configure the "
                    "password, so that squidbot can replace it",
                )
                return False
            self._store(keys)
            try:
                await self._publish(user_id, keys)
            except ApprovalNeeded as error:
                self._state.remove(_FILE)
                _log.error(
                    "matrix.identity_foreign",
                    hint="the account has a cross-signing identity that was made elsewhere; to let squidbot "
                    f"replace it, {error}",
                )
                return False
            _log.info("matrix.identity_published", user=user_id, replaced=bool(theirs))
        self.master = keys["master"].public
        device = object_of(object_of(object_of(published, "device_keys"), user_id), machine.device_id)
        await self._sign_device(machine, keys["self_signing"], device)
        return True

    async def _publish(self, user_id: str, keys: Mapping[str, _Key]) -> None:
        body: dict[str, Any] = {}
        for role, key in keys.items():
            public: dict[str, Any] = {
                "user_id": user_id,
                "usage": [role],
                "keys": {f"ed25519:{key.public}": key.public},
            }
            if role != "master":
                master = keys["master"]
                public["signatures"] = {user_id: {f"ed25519:{master.public}": master.sign(public)}}
            body[f"{role}_key"] = public
        await self._login.with_password("POST", f"{CLIENT}/keys/device_signing/upload", body)

    async def _sign_device(self, machine: OlmMachine, key: _Key, device: JsonObject) -> None:
        signatures = object_of(object_of(device, "signatures"), machine.user_id)
        signed_by = f"ed25519:{key.public}"
        if signed_by in signatures:
            return
        if text_of(object_of(device, "keys"), f"ed25519:{machine.device_id}") != machine.ed25519:
            raise ChannelUnavailable("the homeserver does not show our device's keys yet", retry_after_s=2.0)
        signed = copy.deepcopy({name: value for name, value in device.items() if name != "unsigned"})
        signed["signatures"] = {machine.user_id: {signed_by: key.sign(device)}}
        body = {machine.user_id: {machine.device_id: signed}}
        answer = await self._homeserver.request("POST", f"{CLIENT}/keys/signatures/upload", body)
        if not answer.is_success:
            raise channel_error(answer)
        if answer.body.get("failures"):
            raise ChannelUnavailable("the homeserver does not accept the signature of our device")
        _log.info("matrix.device_signed", device=machine.device_id)

    def _load(self) -> dict[str, _Key] | None:
        try:
            text = self._state.read(_FILE)
            kept = None if text is None else json.loads(text)
            return None if kept is None else {role: _Key(str(kept[role])) for role in _ROLES}
        except (ValueError, KeyError, TypeError) as error:
            _log.error(
                "matrix.identity_unreadable", path=f"{self._state}/{_FILE}", error=type(error).__name__
            )
            return None

    def _store(self, keys: Mapping[str, _Key]) -> None:
        """Before they are published: an identity whose secrets nobody has is worth nothing."""
        self._state.write(_FILE, json.dumps({role: key.secret for role, key in keys.items()}).encode())


class _Key:
    """An Ed25519 key, as an otherwise unused vodozemac account; nio's library costs a megabyte."""

    def __init__(self, secret: str | None = None) -> None:
        import vodozemac  # noqa: PLC0415 - nio is imported late, and so is this

        try:
            self._account = (
                vodozemac.Account.from_pickle(secret, _PICKLE_KEY) if secret else vodozemac.Account()
            )
        except vodozemac.PickleException as error:
            raise ValueError("not a key") from error
        self.secret: str = secret or self._account.pickle(_PICKLE_KEY)
        self.public: str = self._account.ed25519_key.to_base64()

    def sign(self, value: JsonObject) -> str:
        return str(self._account.sign(canonical_json(value)).to_base64())


def public_key(key: JsonObject) -> str:
    """The key itself, of what the homeserver says of it; empty if there is none."""
    return next((value for value in object_of(key, "keys").values() if isinstance(value, str)), "")


_VERIFIED_FILE = "verified.json"
_MOST = 5000
_AT_ONCE = 25

Check = Callable[[str, bytes, str], bool]
"""Key, what was signed, signature: whether it is right."""


class Identities:
    """The identities of an account's contacts; ``check`` verifies Ed25519 signatures."""

    def __init__(self, state_dir: Path | StateFolder, check: Check) -> None:
        self._state = state_in(state_dir)
        self._check = check
        self._masters: dict[str, str] = {}
        self._signed: dict[str, frozenset[str]] = {}
        self._noted: set[tuple[str, str]] = set()
        self._verified = self._load()

    async def learn(self, user_id: str, answer: JsonObject, kept: Iterable[str]) -> None:
        """Learn a person's identity and its signed ``kept`` devices, a few signatures at a time."""
        master_key = object_of(object_of(answer, "master_keys"), user_id)
        signing_key = object_of(object_of(answer, "self_signing_keys"), user_id)
        master, signer = _key_of(master_key), _key_of(signing_key)
        known = self._masters.get(user_id) or self._verified.get(user_id)
        if known and master and known != master:
            was = self._verified.get(user_id) == known
            _log.warning("matrix.identity_changed", user=user_id, was_verified=was)
        if master:
            self._masters[user_id] = master
        signed = set()
        theirs = object_of(object_of(answer, "device_keys"), user_id)
        devices = [device_id for device_id in kept if device_id in theirs]
        if master and signer and self._is_signed(signing_key, user_id, master):
            for number, device_id in enumerate(devices, start=1):
                if self._is_signed(theirs[device_id], user_id, signer):
                    signed.add(device_id)
                if number % _AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
        for device_id in set(devices) - signed:
            if (user_id, device_id) not in self._noted and len(self._noted) < _MOST:
                self._noted.add((user_id, device_id))
                _log.info("matrix.device_unsigned", user=user_id, device=device_id)
        self._signed[user_id] = frozenset(signed)
        for gone, _ in excess_items([(one, one) for one in self._signed], _MOST):
            self._signed.pop(gone)
            self._masters.pop(gone, None)

    def is_signed(self, user_id: str, device_id: str) -> bool:
        """Return True if a person's identity has signed the device."""
        return device_id in self._signed.get(user_id, ())

    def master_key(self, user_id: str) -> str:
        """A person's master key; empty if there is none, or it is unknown."""
        return self._masters.get(user_id, "")

    def is_verified(self, user_id: str) -> bool:
        """Return True if a person's identity is the one verified by emoji."""
        master = self._masters.get(user_id)
        return bool(master) and self._verified.get(user_id) == master

    def record_verification(self, user_id: str, master: str) -> None:
        """Record that a person's identity was verified. Raises `OSError`."""
        self._verified[user_id] = master
        self._state.write(_VERIFIED_FILE, json.dumps(self._verified, indent=1).encode())
        _log.info("matrix.identity_verified", user=user_id)

    def _is_signed(self, value: object, user_id: str, key: str) -> bool:
        signature = text_of(object_of(object_of(value, "signatures"), user_id), f"ed25519:{key}")
        if not signature or text_of(value, "user_id") != user_id:
            return False
        return self._check(key, canonical_json(value), signature)

    def _load(self) -> dict[str, str]:
        try:
            text = self._state.read(_VERIFIED_FILE)
            kept = {} if text is None else json.loads(text)
            return {user_id: key for user_id, key in kept.items() if isinstance(key, str)}
        except StateUnreachable:
            raise
        except (OSError, ValueError, AttributeError) as error:
            _log.error(
                "matrix.verified_unreadable", path=f"{self._state}/{_FILE}", error=type(error).__name__
            )
            return {}


def _key_of(value: JsonObject) -> str:
    keys: Iterable[object] = object_of(value, "keys").values()
    return next((key for key in keys if isinstance(key, str)), "")
