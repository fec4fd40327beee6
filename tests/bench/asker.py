"""
A person who asks two bots on Matrix, plainly and encrypted, in many rooms at once, and holds a stop-watch.

One process, so that both bots have the same person: what the person's client and the homeserver take is in both
figures. The client is the same for both: aiohttp, one long poll, and this project's `Machine` for the keys.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import aiohttp

_FILTER = json.dumps({"presence": {"not_types": ["*"]}, "room": {"timeline": {"limit": 200}}})
Event = dict[str, Any]


class Asker:
    """
    A logged-in person.

    Args:
        url: The homeserver.
        user_id, token, device_id: Whose device this is.
        folder: For the keys.
    """

    def __init__(self, url: str, user_id: str, token: str, device_id: str, folder: Path) -> None:
        from channels.matrix.crypto.olm_machine import OlmMachine

        self.user_id = user_id
        self._url = f"{url}/_matrix/client/v3"
        folder.mkdir(parents=True, exist_ok=True)
        self._machine = OlmMachine(folder, user_id, device_id, "bench")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, connector=aiohttp.TCPConnector(limit=0)
        )
        self._waiters: list[tuple[Callable[[str, Event], bool], asyncio.Future[float]]] = []
        self._unread: list[tuple[str, Event]] = []
        self._encrypted: dict[str, str] = {}
        """By room, with whom."""
        self._poll: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._call("POST", "/keys/upload", self._machine.new_keys(None))
        self._machine.note_upload()
        since = (await self._call("GET", "/sync?timeout=0"))["next_batch"]
        self._poll = asyncio.create_task(self._listen(since))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
        await self._session.close()
        self._machine.close()

    async def room_with(self, bot: str, *, encrypted: bool) -> str:
        """A direct room in which the bot is."""
        body: dict[str, Any] = {"invite": [bot], "is_direct": True, "preset": "trusted_private_chat"}
        if encrypted:
            body["initial_state"] = [
                {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
            ]
        room = str((await self._call("POST", "/createRoom", body))["room_id"])
        await self.wait_for(room, bot)
        if encrypted:
            await self._share(room, bot)
            self._encrypted[room] = bot
        return room

    async def send(self, room: str, text: str) -> None:
        """Say something."""
        kind, content = "m.room.message", {"msgtype": "m.text", "body": text}
        if room in self._encrypted:
            if self._machine._olm.outbound_group_sessions[room].expired:
                await self._share(room, self._encrypted[room])
            kind, content = "m.room.encrypted", self._machine.encrypt(room, kind, content)
        await self._call("PUT", f"/rooms/{quote(room)}/send/{kind}/{secrets.token_hex(8)}", content)

    async def ask(self, room: str, text: str, *, limit_s: float = 60.0) -> float:
        """Say something and wait for the answer with the same words; returns the seconds that it took."""
        answered = self.when(lambda where, event: where == room and text in _body(event))
        begun = time.perf_counter()
        await self.send(room, text)
        return await asyncio.wait_for(answered, limit_s) - begun

    async def typing_after(self, room: str, text: str) -> float:
        """Say something; returns how long it took until the other one was seen typing."""
        shown = self.when(
            lambda where, event: (
                where == room and event["type"] == "m.typing" and bool(event["content"]["user_ids"])
            )
        )
        answered = self.when(lambda where, event: where == room and bool(_body(event)))
        begun = time.perf_counter()
        await self.send(room, text)
        took_s = await asyncio.wait_for(shown, 60.0) - begun
        await asyncio.wait_for(answered, 60.0)
        return took_s

    async def flood(self, token: str, room: str, count: int, *, at_once: int = 2) -> None:
        """Somebody else, with ``token``, says so many things in a room as fast as the homeserver takes them."""
        path = f"/rooms/{quote(room)}/send/m.room.message/flood-"
        body = {"msgtype": "m.text", "body": "spam " * 30}
        calls = (("PUT", f"{path}{number}", body) for number in range(count))
        await self.as_somebody(token, calls, at_once=at_once)

    async def as_somebody(
        self, token: str, calls: Iterable[tuple[str, str, object]], *, at_once: int = 2
    ) -> None:
        """Method, path and body of each call, made with the token of somebody else as fast as they are taken."""
        headers = {"Authorization": f"Bearer {token}"}
        waiting = iter(calls)

        async def some() -> None:
            for method, path, body in waiting:
                async with self._session.request(
                    method, self._url + path, json=body, headers=headers
                ) as answer:
                    answer.raise_for_status()

        await asyncio.gather(*(some() for _ in range(at_once)))

    async def share_room(self, *invited: str) -> str:
        """A room for several."""
        body = {"invite": list(invited), "preset": "private_chat"}
        return str((await self._call("POST", "/createRoom", body))["room_id"])

    async def wait_for(self, room: str, member: str) -> None:
        """Until somebody has joined."""
        deadline = time.monotonic() + 60
        while member not in (await self._call("GET", f"/rooms/{quote(room)}/joined_members"))["joined"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{member} did not accept the invitation")
            await asyncio.sleep(0.05)

    def when(self, fits: Callable[[str, Event], bool]) -> asyncio.Future[float]:
        """The moment at which an event of somebody else arrives."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiters.append((fits, future))
        return future

    async def _share(self, room: str, bot: str) -> None:
        answer = await self._call("POST", "/keys/query", {"device_keys": {bot: []}})
        self._machine.learn_devices(bot, answer["device_keys"].get(bot, {}))
        devices = self._machine.devices_of([bot])
        missing = self._machine.strangers(devices)
        if missing:
            wanted = {bot: {device.device_id: "signed_curve25519" for device in missing}}
            claimed = await self._call("POST", "/keys/claim", {"one_time_keys": wanted})
            self._machine.start_sessions(claimed["one_time_keys"])
        bodies = self._machine.room_key_for(room, devices)
        messages = {bot: {device.device_id: body for device, body in bodies.items()}}
        path = f"/sendToDevice/m.room.encrypted/{secrets.token_hex(8)}"
        await self._call("PUT", path, {"messages": messages})
        self._machine.note_key_delivery(room, devices)

    async def _listen(self, since: str) -> None:
        query = f"timeout=30000&filter={quote(_FILTER)}"
        while True:
            answer = await self._call("GET", f"/sync?{query}&since={quote(since)}")
            now = time.perf_counter()
            since = answer["next_batch"]
            if self._machine.receive(answer.get("to_device", {}).get("events", [])):
                waiting, self._unread = self._unread, []
                for room, event in waiting:
                    self._see(room, event, now)
            for room, part in answer.get("rooms", {}).get("join", {}).items():
                for section in ("ephemeral", "timeline"):
                    for event in part.get(section, {}).get("events", []):
                        self._see(room, event, now)

    def _see(self, room: str, event: Event, now: float) -> None:
        if event.get("sender") == self.user_id:
            return
        if event["type"] == "m.room.encrypted":
            try:
                event = self._machine.decrypt(room, event)
            except Exception:
                self._unread.append((room, event))
                return
        for fits, future in list(self._waiters):
            if future.done() or fits(room, event):
                self._waiters.remove((fits, future))
                if not future.done():
                    future.set_result(now)

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        async with self._session.request(method, self._url + path, json=body) as answer:
            answer.raise_for_status()
            found: dict[str, Any] = await answer.json()
            return found


def _body(event: Event) -> str:
    return str(event["content"].get("body", "")) if event["type"] == "m.room.message" else ""
