"""
The computations of an emoji verification (SAS) on the side of whoever was asked. Pure but for the keys.

The steps: they ask, we are ``ready``; they ``start``, we ``accept`` with a commitment to our key; they send
their ``key``, we ours, and both see the same seven emoji; they send a ``mac`` over their keys, and only when
it is right we send ours, over the device's key **and** the master key, without which not the identity but
only the device would be verified. nio's own does not interoperate, in four ways.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.crypto.cross_signing import encode_unpadded_base64
from channels.matrix.crypto.key_types import NotReadable

METHOD = "m.sas.v1"
_AGREEMENT = "curve25519-hkdf-sha256"
_MAC = "hkdf-hmac-sha256.v2"
_HASH = "sha256"
_EMOJI = [
    "🐶 Dog",
    "🐱 Cat",
    "🦁 Lion",
    "🐎 Horse",
    "🦄 Unicorn",
    "🐷 Pig",
    "🐘 Elephant",
    "🐰 Rabbit",
    "🐼 Panda",
    "🐓 Rooster",
    "🐧 Penguin",
    "🐢 Turtle",
    "🐟 Fish",
    "🐙 Octopus",
    "🦋 Butterfly",
    "🌷 Flower",
    "🌳 Tree",
    "🌵 Cactus",
    "🍄 Mushroom",
    "🌏 Globe",
    "🌙 Moon",
    "☁️ Cloud",
    "🔥 Fire",
    "🍌 Banana",
    "🍎 Apple",
    "🍓 Strawberry",
    "🌽 Corn",
    "🍕 Pizza",
    "🎂 Cake",
    "❤️ Heart",
    "😀 Smiley",
    "🤖 Robot",
    "🎩 Hat",
    "👓 Glasses",
    "🔧 Spanner",
    "🎅 Santa",
    "👍 Thumbs Up",
    "☂️ Umbrella",
    "⌛ Hourglass",
    "⏰ Clock",
    "🎁 Gift",
    "💡 Light Bulb",
    "📕 Book",
    "✏️ Pencil",
    "📎 Paperclip",
    "✂️ Scissors",
    "🔒 Lock",
    "🔑 Key",
    "🔨 Hammer",
    "☎️ Telephone",
    "🏁 Flag",
    "🚂 Train",
    "🚲 Bicycle",
    "✈️ Aeroplane",
    "🚀 Rocket",
    "🏆 Trophy",
    "⚽ Ball",
    "🎸 Guitar",
    "🎺 Trumpet",
    "🔔 Bell",
    "⚓ Anchor",
    "🎧 Headphones",
    "📁 Folder",
    "📌 Pin",
]


class SasFailed(Exception):
    """The verification cannot continue; ``code`` is the specification's error code."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


class Sas:
    """One emoji verification between ``us`` and ``them`` (user, device). Raises SasFailed."""

    def __init__(
        self,
        machine: Any,
        transaction: str,
        *,
        us: tuple[str, str],
        them: tuple[str, str],
        start: JsonObject,
        canonical_start: bytes,
    ) -> None:
        wanted = {
            "key_agreement_protocols": _AGREEMENT,
            "message_authentication_codes": _MAC,
            "hashes": _HASH,
            "short_authentication_string": "emoji",
        }
        for key, value in wanted.items():
            offered = start.get(key)
            if not isinstance(offered, list) or value not in offered:
                raise SasFailed("m.unknown_method", f"{key} lacks {value}")
        self._machine = machine
        self._transaction = transaction
        self._us, self._them = us, them
        self._half = machine.new_sas()
        self._key: str = self._half.public_key.to_base64()
        self._commitment = encode_unpadded_base64(
            hashlib.sha256(self._key.encode() + canonical_start).digest()
        )
        self._whole: Any = None

    def accept(self) -> dict[str, Any]:
        """The content of our ``accept``."""
        return {
            "method": METHOD,
            "key_agreement_protocol": _AGREEMENT,
            "hash": _HASH,
            "message_authentication_code": _MAC,
            "short_authentication_string": ["emoji"],
            "commitment": self._commitment,
        }

    def key(self, content: JsonObject) -> tuple[dict[str, Any], list[str]]:
        """Take their ``key``; returns the content of ours and the emoji that both sides see."""
        theirs = text_of(content, "key")
        if self._whole is not None:
            raise SasFailed("m.unexpected_message", "a second key")
        try:
            self._whole = self._machine.meet(self._half, theirs)
        except NotReadable as error:
            raise SasFailed("m.invalid_message", "their key is no key") from error
        ours_and_theirs = (*self._them, theirs, *self._us, self._key, self._transaction)
        shown = self._whole.bytes("|".join(("MATRIX_KEY_VERIFICATION_SAS", *ours_and_theirs)))
        return {"key": self._key}, [_EMOJI[index] for index in shown.emoji_indices]

    def check_mac(self, content: JsonObject, their_keys: Mapping[str, str]) -> set[str]:
        """Check a ``mac`` against their keys (``ed25519:…`` → key); return the keys vouched for."""
        if self._whole is None:
            raise SasFailed("m.unexpected_message", "a mac before the keys")
        macs = {key: tag for key, tag in object_of(content, "mac").items() if isinstance(tag, str)}
        info = self._info(self._them, self._us)
        self._check(",".join(sorted(macs)), f"{info}KEY_IDS", text_of(content, "keys"))
        device = f"ed25519:{self._them[1]}"
        if device not in macs or device not in their_keys:
            raise SasFailed("m.key_mismatch", "their device's key is missing")
        for key_id in macs.keys() & their_keys.keys():
            self._check(their_keys[key_id], info + key_id, macs[key_id])
        return macs.keys() & their_keys.keys()

    def mac(self, our_keys: Mapping[str, str]) -> dict[str, Any]:
        """The content of our ``mac``."""
        info = self._info(self._us, self._them)
        macs = {key_id: self._whole.calculate_mac(key, info + key_id) for key_id, key in our_keys.items()}
        return {"mac": macs, "keys": self._whole.calculate_mac(",".join(sorted(macs)), f"{info}KEY_IDS")}

    def _info(self, first: tuple[str, str], second: tuple[str, str]) -> str:
        return "MATRIX_KEY_VERIFICATION_MAC" + "".join((*first, *second, self._transaction))

    def _check(self, value: str, info: str, tag: str) -> None:
        try:
            self._whole.verify_mac(value, info, tag)
        except Exception as error:
            raise SasFailed("m.key_mismatch", "a mac is wrong") from error
