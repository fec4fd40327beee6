"""
Emoji verification (SAS): an allowed person or the operator starts it, compares emoji and trusts the bot;
strangers get no answer. Each person's steps run in their own task, at most `MAX_OPEN_EACH` for `LIFE_S`;
restarts forget them. Our ``mac`` follows only a right one of theirs, and covers the device's key **and** the
master key. nio's own verification does not interoperate.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog

from channels.base import ChannelClock, ChannelError
from channels.matrix.client.homeserver import LinkBroken
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.crypto.cross_signing import canonical_json, encode_unpadded_base64
from channels.matrix.crypto.devices import KeyTokenRefused
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.key_types import NotReadable

METHOD = "m.sas.v1"
_AGREEMENT = "curve25519-hkdf-sha256"
_MAC = "hkdf-hmac-sha256.v2"
_HASH = "sha256"
_EMOJI = [
    *("🐶 Dog", "🐱 Cat", "🦁 Lion", "🐎 Horse", "🦄 Unicorn", "🐷 Pig"),
    *("🐘 Elephant", "🐰 Rabbit", "🐼 Panda", "🐓 Rooster", "🐧 Penguin", "🐢 Turtle"),
    *("🐟 Fish", "🐙 Octopus", "🦋 Butterfly", "🌷 Flower", "🌳 Tree", "🌵 Cactus"),
    *("🍄 Mushroom", "🌏 Globe", "🌙 Moon", "☁️ Cloud", "🔥 Fire", "🍌 Banana"),
    *("🍎 Apple", "🍓 Strawberry", "🌽 Corn", "🍕 Pizza", "🎂 Cake", "❤️ Heart"),
    *("😀 Smiley", "🤖 Robot", "🎩 Hat", "👓 Glasses", "🔧 Spanner", "🎅 Santa"),
    *("👍 Thumbs Up", "☂️ Umbrella", "⌛ Hourglass", "⏰ Clock", "🎁 Gift", "💡 Light Bulb"),
    *("📕 Book", "✏️ Pencil", "📎 Paperclip", "✂️ Scissors", "🔒 Lock", "🔑 Key"),
    *("🔨 Hammer", "☎️ Telephone", "🏁 Flag", "🚂 Train", "🚲 Bicycle", "✈️ Aeroplane"),
    *("🚀 Rocket", "🏆 Trophy", "⚽ Ball", "🎸 Guitar", "🎺 Trumpet", "🔔 Bell"),
    *("⚓ Anchor", "🎧 Headphones", "📁 Folder", "📌 Pin"),
]
"""As the specification orders and names them."""


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
            self._whole = self._machine.combine_keys(self._half, theirs)
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


LIFE_S = 600.0
MAX_OPEN_EACH = 5
MAX_OPEN = 200
"""Of all people together; beyond it, whoever has most of them loses the oldest."""
_PREFIX = "m.key.verification."
_log = structlog.get_logger(__name__)
SendInRoom = Callable[[str, str, JsonObject], Awaitable[None]]
"""Room, type, content."""


def is_verification(event: JsonObject) -> bool:
    """Return True if a room event belongs to a verification."""
    kind = text_of(event, "type")
    if kind == "m.room.message":
        return text_of(object_of(event, "content"), "msgtype") == f"{_PREFIX}request"
    return kind.startswith(_PREFIX)


@dataclass(slots=True)
class _Open:
    transaction: str
    user_id: str
    device_id: str
    room_id: str
    until: float
    begun_by_us: bool = False
    sas: Sas | None = None
    emoji: list[str] = field(default_factory=list)
    agreed: bool = False
    """The operator has said that the emoji are the same."""
    mac: JsonObject | None = None
    """Theirs, which waits for the operator's word."""


class Verifications:
    """The verifications of one account; ``send_in_room`` encrypts where the room is."""

    def __init__(
        self,
        crypto: EncryptionEngine,
        clock: ChannelClock,
        *,
        user_id: str,
        allows: Callable[[str], bool],
        send_in_room: SendInRoom,
    ) -> None:
        self._crypto = crypto
        self._clock = clock
        self._user_id = user_id
        self._allows = allows
        self._send_in_room = send_in_room
        self._open: dict[tuple[str, str], _Open] = {}
        self._steps: dict[str, deque[tuple[str, JsonObject]]] = {}
        """By person, what is still to be answered; somebody is in here as long as it is being worked off."""
        self._waiting: list[str] = []
        """People whose steps nobody works off yet."""
        self._news = anyio.Event()
        self._attended_until = 0.0
        self._outcome: dict[str, str] = {}
        """By person, how the last verification ended."""

    def attend(self) -> None:
        """Note that an operator is watching: for a while, the last step of each verification is theirs."""
        self._attended_until = self._clock.monotonic() + 60.0

    def state(self, user_id: str = "") -> dict[str, Any]:
        """The state of the newest verification, of one person or of anybody."""
        now = self._clock.monotonic()
        found = [one for one in self._open.values() if user_id in ("", one.user_id) and one.until > now]
        if found:
            one = found[-1]
            stage = "agreed" if one.agreed else "emoji" if one.emoji else "begun"
            return {"user": one.user_id, "device": one.device_id, "stage": stage, "emoji": one.emoji}
        ended = [user for user in self._outcome if user_id in ("", user)]
        if ended:
            return {"user": ended[-1], "stage": self._outcome[ended[-1]], "emoji": []}
        return {"user": user_id, "stage": "none", "emoji": []}

    def forget_outcomes(self) -> None:
        """Forget the verifications that have ended."""
        self._outcome.clear()

    async def begin(self, user_id: str) -> int:
        """Ask a person to verify the bot on all devices; return their number. Raises ChannelError."""
        machine = await self._crypto.ready()
        await self._crypto.learn_devices([user_id])
        devices = machine.devices_of([user_id])
        transaction = secrets.token_hex(16)
        until = self._clock.monotonic() + LIFE_S
        if not devices:
            return 0
        self._make_room(user_id)
        self._open[user_id, transaction] = _Open(transaction, user_id, "", "", until, begun_by_us=True)
        content = {
            "from_device": machine.device_id,
            "methods": [METHOD],
            "timestamp": int(self._clock.now().timestamp() * 1000),
            "transaction_id": transaction,
        }
        for device in sorted(devices):
            await self._crypto.send_to_device(f"{_PREFIX}request", user_id, device.device_id, content)
        return len(devices)

    async def answer(self, user_id: str, *, same: bool) -> bool:
        """Take the operator's comparison of emoji; False if none was due. Raises ChannelError."""
        shown = [one for one in self._open.values() if one.user_id == user_id and one.emoji]
        if not shown:
            return False
        one = shown[-1]
        if not same:
            self._drop(one, "mismatched")
            _log.warning("matrix.verification_cancelled", user=one.user_id, reason="m.mismatched_sas")
            await self._send(one, "cancel", {"code": "m.mismatched_sas", "reason": "the emoji differ"})
            return True
        one.agreed = True
        if one.mac is not None:
            await self._conclude(one, one.mac)
        return True

    def learn(self, room_id: str, event: JsonObject) -> None:
        """Process an event, of a room or (with an empty ``room_id``) for this device; returns at once."""
        kind, sender = text_of(event, "type"), text_of(event, "sender")
        if not (kind.startswith(_PREFIX) or is_verification(event)):
            return
        if sender == self._user_id or not self._allows(sender):
            return
        steps = self._steps.get(sender)
        if len(self._steps) >= 200 if steps is None else len(steps) >= 50:
            _log.warning("matrix.verification_dropped", user=sender)
            return
        if steps is None:
            steps = self._steps[sender] = deque()
            self._waiting.append(sender)
        steps.append((room_id, event))
        self._news.set()

    async def run(self) -> None:
        """Answer verifications until cancelled."""
        self._waiting = list(self._steps)  # those whom the end of an earlier run has left
        async with anyio.create_task_group() as people:
            while True:
                while self._waiting:
                    people.start_soon(self._serve, self._waiting.pop(0))
                await self._news.wait()
                self._news = anyio.Event()

    async def _serve(self, user_id: str) -> None:
        """Work off one person's steps."""
        steps = self._steps[user_id]
        while steps:
            await self._answer(*steps.popleft())
        del self._steps[user_id]

    async def _answer(self, room_id: str, event: JsonObject) -> None:
        try:
            await self._step(room_id, event)
        except (ChannelError, LinkBroken, KeyTokenRefused) as error:
            _log.warning("matrix.verification_stuck", error=str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - one event must not end the others
            _log.error("matrix.verification_failed", error=type(error).__name__)

    async def _step(self, room_id: str, event: JsonObject) -> None:
        content = object_of(event, "content")
        kind = text_of(event, "type").removeprefix(_PREFIX)
        if kind in ("m.room.message", "request"):
            await self._request(room_id, event, content)
            return
        transaction = text_of(content, "transaction_id")
        if room_id:
            transaction = text_of(object_of(content, "m.relates_to"), "event_id")
        one = self._open.get((text_of(event, "sender"), transaction))
        if one is None or one.room_id != room_id:
            return
        try:
            await self._go_on(one, kind, content)
        except SasFailed as failed:
            self._drop(one, "failed")
            _log.warning("matrix.verification_cancelled", user=one.user_id, reason=failed.code)
            await self._send(one, "cancel", {"code": failed.code, "reason": str(failed)})

    async def _request(self, room_id: str, event: JsonObject, content: JsonObject) -> None:
        transaction = text_of(event, "event_id") if room_id else text_of(content, "transaction_id")
        methods = content.get("methods")
        if room_id and text_of(content, "to") != self._user_id:
            return
        if not transaction or not isinstance(methods, list) or METHOD not in methods:
            return
        now = self._clock.monotonic()
        for old in [one for one in self._open.values() if one.until < now]:
            self._drop(old, "timed out")
        user_id, device_id = text_of(event, "sender"), text_of(content, "from_device")
        if (user_id, transaction) in self._open:
            return
        machine = await self._crypto.ready()
        await self._crypto.learn_devices([user_id])
        self._make_room(user_id)
        one = _Open(transaction, user_id, device_id, room_id, now + LIFE_S)
        self._open[user_id, transaction] = one
        _log.info("matrix.verification_started", user=user_id, device=device_id, in_room=bool(room_id))
        await self._send(one, "ready", {"from_device": machine.device_id, "methods": [METHOD]})

    async def _go_on(self, one: _Open, kind: str, content: JsonObject) -> None:
        machine = await self._crypto.ready()
        match kind:
            case "ready" if one.begun_by_us and one.sas is None:
                one.device_id = text_of(content, "from_device")
            case "start" if one.sas is None:
                if text_of(content, "method") != METHOD:
                    raise SasFailed("m.unknown_method", "only emoji")
                one.sas = Sas(
                    machine,
                    one.transaction,
                    us=(self._user_id, machine.device_id),
                    them=(one.user_id, text_of(content, "from_device") or one.device_id),
                    start=content,
                    canonical_start=canonical_json(content),
                )
                one.device_id = text_of(content, "from_device") or one.device_id
                await self._send(one, "accept", one.sas.accept())
            case "key" if one.sas is not None:
                ours, one.emoji = one.sas.key(content)
                await self._send(one, "key", ours)
                _log.info("matrix.verification_emoji", user=one.user_id, emoji="  ".join(one.emoji))
            case "mac" if one.sas is not None and one.mac is None:
                one.mac = content
                if one.agreed or self._clock.monotonic() >= self._attended_until:
                    await self._conclude(one, content)
            case "done" | "cancel":
                self._drop(one, kind)
                if kind == "cancel":
                    _log.info("matrix.verification_cancelled", user=one.user_id, reason="by them")
            case _:
                raise SasFailed("m.unexpected_message", kind[:30])

    async def _conclude(self, one: _Open, mac: JsonObject) -> None:
        """Check their word for their keys, and give ours."""
        assert one.sas is not None, "there is no mac before the keys were exchanged"
        machine = await self._crypto.ready()
        try:
            vouched = one.sas.check_mac(mac, self._keys_of(one))
        except SasFailed as failed:
            self._drop(one, "failed")
            _log.warning("matrix.verification_cancelled", user=one.user_id, reason=failed.code)
            await self._send(one, "cancel", {"code": failed.code, "reason": str(failed)})
            return
        ours = {f"ed25519:{machine.device_id}": machine.ed25519}
        if self._crypto.signing.master:
            ours[f"ed25519:{self._crypto.signing.master}"] = self._crypto.signing.master
        await self._send(one, "mac", one.sas.mac(ours))
        await self._send(one, "done", {})
        master = self._crypto.identities.master_key(one.user_id)
        if one.agreed and master and f"ed25519:{master}" in vouched:
            self._crypto.identities.record_verification(one.user_id, master)
        _log.info("matrix.verification_done", user=one.user_id, device=one.device_id, compared=one.agreed)
        self._drop(one, "done")

    def _keys_of(self, one: _Open) -> dict[str, str]:
        keys = {}
        fingerprint = self._crypto.fingerprint(one.user_id, one.device_id)
        if fingerprint:
            keys[f"ed25519:{one.device_id}"] = fingerprint
        master = self._crypto.identities.master_key(one.user_id)
        if master:
            keys[f"ed25519:{master}"] = master
        return keys

    def _make_room(self, user_id: str) -> None:
        """One more of this person is about to be opened."""
        mine = [one for one in self._open.values() if one.user_id == user_id]
        if len(mine) >= MAX_OPEN_EACH:
            self._drop(mine[0], "replaced")
        elif len(self._open) >= MAX_OPEN:
            [(most, _)] = Counter(one.user_id for one in self._open.values()).most_common(1)
            self._drop(next(one for one in self._open.values() if one.user_id == most), "replaced")

    def _drop(self, one: _Open, outcome: str) -> None:
        if self._open.pop((one.user_id, one.transaction), None) is not None:
            self._outcome.pop(one.user_id, None)
            self._outcome[one.user_id] = outcome
            while len(self._outcome) > MAX_OPEN:
                self._outcome.pop(next(iter(self._outcome)))

    async def _send(self, one: _Open, step: str, content: dict[str, Any]) -> None:
        if one.room_id:
            related = {"m.relates_to": {"rel_type": "m.reference", "event_id": one.transaction}}
            await self._send_in_room(one.room_id, _PREFIX + step, {**content, **related})
            return
        body = {**content, "transaction_id": one.transaction}
        await self._crypto.send_to_device(_PREFIX + step, one.user_id, one.device_id, body)
