"""
Other people's identities: which devices they have signed, and whether a person was verified.

A homeserver could add devices of its own, so signatures of the cross-signing identity are checked; an
identity compared by emoji is certain, and its later change is reported and ends the verification. The setting
``devices`` decides: ``all`` shares with every device and logs unsigned ones, ``signed`` neither gives them
keys nor reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
import anyio.lowlevel
import structlog

from agent_core.state_folder import StateAway, StateFolder, state_in
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.crypto.cross_signing import canonical
from channels.matrix.crypto.fair_shares import beyond_shares

_FILE = "verified.json"
_MOST = 5000
_AT_ONCE = 25
_log = structlog.get_logger(__name__)
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
        for gone, _ in beyond_shares([(one, one) for one in self._signed], _MOST):
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
        self._state.write(_FILE, json.dumps(self._verified, indent=1).encode())
        _log.info("matrix.identity_verified", user=user_id)

    def _is_signed(self, value: object, user_id: str, key: str) -> bool:
        signature = text_of(object_of(object_of(value, "signatures"), user_id), f"ed25519:{key}")
        if not signature or text_of(value, "user_id") != user_id:
            return False
        return self._check(key, canonical(value), signature)

    def _load(self) -> dict[str, str]:
        try:
            text = self._state.read(_FILE)
            kept = {} if text is None else json.loads(text)
            return {user_id: key for user_id, key in kept.items() if isinstance(key, str)}
        except StateAway:
            raise
        except (OSError, ValueError, AttributeError) as error:
            _log.error(
                "matrix.verified_unreadable", path=f"{self._state}/{_FILE}", error=type(error).__name__
            )
            return {}


def _key_of(value: JsonObject) -> str:
    keys: Iterable[object] = object_of(value, "keys").values()
    return next((key for key in keys if isinstance(key, str)), "")
