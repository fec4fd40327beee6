"""
Emoji verification: somebody who may talk to the bot compares emoji with its log, and trusts it from then on.

Theory of operation. The bot only answers, it never begins. Both transports are served: in a room, as Element
does it between people (the transaction is the id of the request), and between devices. Strangers get no
answer at all. Steps are worked off by one task, in order; at most `MAX_OPEN` verifications are open, each for
`LIFE_S`. A restart forgets them: the person begins again.

The emoji are written to the log (``matrix.verification_emoji``) and kept in `Verifications.shown` for whoever
asks the daemon. The bot cannot compare them itself, so it takes nothing from a verification: it is the person
who learns that the bot is who it says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog

from channels.base import ChannelError, Clock
from channels.matrix.cross_signing import canonical
from channels.matrix.crypto import Crypto
from channels.matrix.key_requests import TokenRefused
from channels.matrix.rooms import JsonObject, object_of, text_of
from channels.matrix.sas import METHOD, Sas, SasFailed
from channels.matrix.wire import LinkBroken

__all__ = ["LIFE_S", "MAX_OPEN", "Verifications", "is_verification"]

LIFE_S = 600.0
MAX_OPEN = 20
_PREFIX = "m.key.verification."
_MAX_STEPS = 100
_log = structlog.get_logger(__name__)
SendInRoom = Callable[[str, str, JsonObject], Awaitable[None]]
"""Room, type, content."""


def is_verification(event: JsonObject) -> bool:
    """Whether an event of a room belongs to a verification."""
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
    sas: Sas | None = None
    emoji: list[str] = field(default_factory=list)


class Verifications:
    """
    The verifications of one account.

    Args:
        crypto: Our keys and the way to other devices.
        clock: For ages.
        user_id: Who we are.
        allows: Who may verify the bot.
        send_in_room: Sends an event into a room, encrypted if the room is.
    """

    def __init__(
        self,
        crypto: Crypto,
        clock: Clock,
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
        self._give, self._steps = anyio.create_memory_object_stream[tuple[str, JsonObject]](_MAX_STEPS)
        self.shown: dict[str, list[str]] = {}
        """By person, the emoji that were shown last."""

    def learn(self, room_id: str, event: JsonObject) -> None:
        """Take note of an event, of a room or (with an empty ``room_id``) of this device; returns at once."""
        kind, sender = text_of(event, "type"), text_of(event, "sender")
        if not (kind.startswith(_PREFIX) or is_verification(event)):
            return
        if sender == self._user_id or not self._allows(sender):
            return
        try:
            self._give.send_nowait((room_id, event))
        except anyio.WouldBlock:
            _log.warning("matrix.verification_dropped", user=sender)

    async def run(self) -> None:
        """Answer until cancelled; called once."""
        with self._give, self._steps:
            await self._answer()

    async def _answer(self) -> None:
        async for room_id, event in self._steps:
            try:
                await self._step(room_id, event)
            except (ChannelError, LinkBroken, TokenRefused) as error:
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
            self._drop(one)
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
            self._drop(old)
        user_id, device_id = text_of(event, "sender"), text_of(content, "from_device")
        if len(self._open) >= MAX_OPEN or (user_id, transaction) in self._open:
            return
        machine = await self._crypto.ready()
        await self._crypto.learn_devices([user_id])
        one = _Open(transaction, user_id, device_id, room_id, now + LIFE_S)
        self._open[user_id, transaction] = one
        _log.info("matrix.verification_begun", user=user_id, device=device_id, in_room=bool(room_id))
        await self._send(one, "ready", {"from_device": machine.device_id, "methods": [METHOD]})

    async def _go_on(self, one: _Open, kind: str, content: JsonObject) -> None:
        machine = await self._crypto.ready()
        match kind:
            case "start" if one.sas is None:
                if text_of(content, "method") != METHOD:
                    raise SasFailed("m.unknown_method", "only emoji")
                one.sas = Sas(
                    machine,
                    one.transaction,
                    us=(self._user_id, machine.device_id),
                    them=(one.user_id, text_of(content, "from_device") or one.device_id),
                    start=content,
                    canonical_start=canonical(content),
                )
                one.device_id = text_of(content, "from_device") or one.device_id
                await self._send(one, "accept", one.sas.accept())
            case "key" if one.sas is not None:
                ours, one.emoji = one.sas.key(content)
                await self._send(one, "key", ours)
                self.shown[one.user_id] = one.emoji
                _log.info("matrix.verification_emoji", user=one.user_id, emoji="  ".join(one.emoji))
            case "mac" if one.sas is not None:
                one.sas.check_mac(content, self._keys_of(one))
                ours = {f"ed25519:{machine.device_id}": machine.ed25519}
                if self._crypto.signing.master:
                    ours[f"ed25519:{self._crypto.signing.master}"] = self._crypto.signing.master
                await self._send(one, "mac", one.sas.mac(ours))
                await self._send(one, "done", {})
                _log.info("matrix.verification_done", user=one.user_id, device=one.device_id)
            case "done" | "cancel":
                self._drop(one)
                if kind == "cancel":
                    _log.info("matrix.verification_cancelled", user=one.user_id, reason="by them")
            case _:
                raise SasFailed("m.unexpected_message", kind[:30])

    def _keys_of(self, one: _Open) -> dict[str, str]:
        fingerprint = self._crypto.fingerprint(one.user_id, one.device_id)
        return {f"ed25519:{one.device_id}": fingerprint} if fingerprint else {}

    def _drop(self, one: _Open) -> None:
        self._open.pop((one.user_id, one.transaction), None)

    async def _send(self, one: _Open, step: str, content: dict[str, Any]) -> None:
        if one.room_id:
            related = {"m.relates_to": {"rel_type": "m.reference", "event_id": one.transaction}}
            await self._send_in_room(one.room_id, _PREFIX + step, {**content, **related})
            return
        body = {**content, "transaction_id": one.transaction}
        await self._crypto.send_to_device(_PREFIX + step, one.user_id, one.device_id, body)
