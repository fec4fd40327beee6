"""
`SecretPeer`: a person whose client encrypts, and can be told to do so badly: keys late, withheld or garbled.

It is a `MatrixPeer` with a `Machine` of its own, so what it sends and when is decided by the test alone. What a
real client makes of the channel is judged elsewhere, by an Element-like one.
"""

from __future__ import annotations

import secrets
from urllib.parse import quote

from devservers import MatrixPeer


class SecretPeer:
    def __init__(self, url, credentials, folder):
        from channels.matrix.crypto.olm_machine import OlmMachine

        folder.mkdir(parents=True, exist_ok=True)
        self.peer = MatrixPeer.of(url, credentials)
        self.user_id = credentials.user_id
        self.machine = OlmMachine(folder, credentials.user_id, credentials.device_id, "test")
        self._call("POST", "/keys/upload", self.machine.new_keys(None))
        self.machine.note_upload()
        self._since = None
        self.keys_taken = 0

    def create_room(self, bot_id, *, version=None):
        room = self.peer.create_room([bot_id], is_direct=True, room_version=version)
        self.encrypt(room)
        return room

    def encrypt(self, room):
        """From now on the room is encrypted."""
        path = f"/rooms/{quote(room)}/state/m.room.encryption/"
        self._call("PUT", path, {"algorithm": "m.megolm.v1.aes-sha2"})

    def send(self, room, text, *, to, give_key=True, kind="m.room.message", **content):
        """Send encrypted; gives the event's id. Without ``give_key`` the key stays here until `give_key`."""
        devices, bodies = self._keys(room, to)
        if give_key:
            self._give(room, devices, bodies)
        else:
            self.kept = (room, devices, bodies)
        body = {"msgtype": "m.text", "body": text, **content}
        return self.peer.send_event(room, "m.room.encrypted", self.machine.encrypt(room, kind, body))

    def give_key(self):
        """Send the key that was kept back."""
        self._give(*self.kept)

    def withhold(self, room, device, code):
        """Say that the key of the newest session will not come."""
        session = self.machine._olm.outbound_group_sessions[room]
        content = {
            "algorithm": "m.megolm.v1.aes-sha2",
            "room_id": room,
            "session_id": session.id,
            "code": code,
            "reason": "test",
        }
        self.to_device("m.room_key.withheld", device.user_id, device.device_id, content)

    def to_device(self, kind, user_id, device_id, content):
        path = f"/sendToDevice/{kind}/{secrets.token_hex(8)}"
        self._call("PUT", path, {"messages": {user_id: {device_id: content}}})

    def devices_of(self, user_id):
        answer = self._call("POST", "/keys/query", {"device_keys": {user_id: []}})
        self.machine.learn_devices(user_id, answer["device_keys"].get(user_id, {}))
        return self.machine.devices_of([user_id])

    def claim(self, devices):
        wanted = {}
        for device in devices:
            wanted.setdefault(device.user_id, {})[device.device_id] = "signed_curve25519"
        return self._call("POST", "/keys/claim", {"one_time_keys": wanted})["one_time_keys"]

    def take_keys(self):
        """Take all keys that have come. A server hands out a part of them (Synapse: 100 events) with each sync."""
        while True:
            query = "/sync?timeout=0" + (f"&since={self._since}" if self._since else "")
            answer = self._call("GET", query)
            self._since = answer["next_batch"]
            events = answer.get("to_device", {}).get("events", [])
            if not events:
                return
            self.keys_taken += self.machine.receive(events)

    def new_key(self, room):
        """What is said next has a room key of its own."""
        self.machine._olm.outbound_group_sessions.pop(room, None)

    def read(self, room):
        """All that others have said in the room, as far as it can be read: (wire type, content)."""
        self.take_keys()
        chunk = self._call("GET", f"/rooms/{quote(room)}/messages?dir=b&limit=200")["chunk"]
        found = []
        for event in reversed(chunk):
            if event["sender"] == self.user_id or not event["type"].startswith("m.room."):
                continue
            if event["type"] == "m.room.encrypted":
                try:
                    found.append((event["type"], self.machine.decrypt(room, event)["content"]))
                except Exception as error:
                    found.append((event["type"], {"body": f"<{type(error).__name__}>"}))
            elif event["type"] == "m.room.message":
                found.append((event["type"], event["content"]))
        return found

    def encrypted_by(self, room, user_id):
        """The ids of what somebody has said encrypted, oldest first."""
        chunk = self._call("GET", f"/rooms/{quote(room)}/messages?dir=b&limit=200")["chunk"]
        said = [one for one in chunk if (one["sender"], one["type"]) == (user_id, "m.room.encrypted")]
        return [one["event_id"] for one in reversed(said)]

    def close(self):
        self.machine.close()

    def _keys(self, room, to):
        """``to`` is a user, or several."""
        devices = set().union(*map(self.devices_of, [to] if isinstance(to, str) else to))
        missing = self.machine.strangers(devices)
        if missing:
            self.machine.start_sessions(self.claim(missing))
        bodies = self.machine.room_key_for(room, devices)
        self.machine.note_key_delivery(room, devices)
        return devices, bodies

    def _give(self, room, devices, bodies):
        for device, body in bodies.items():
            self.to_device("m.room.encrypted", device.user_id, device.device_id, body)

    def _call(self, method, path, body=None):
        return self.peer.call(method, path, body)
