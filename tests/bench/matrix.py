"""
From a question to its answer through a real homeserver: squidbot, and beside it an echo bot on bare nio.

Alice asks them in turn, each in a room of its own; the clock runs from the start of her sending until her
client has the answer. What Synapse takes is in both figures, so the difference is what squidbot adds.
"""

from __future__ import annotations

import secrets
import time

from tests.bench.rig import Rig
from tests.bench.table import Figure, share

__all__ = ["measure"]

_WARM_UP = 3


def measure(rig: Rig) -> list[Figure]:
    """Questions and answers, alternating between the two bots."""
    daemon = rig.daemon()
    daemon.start()
    floor = rig.synapse.register(f"floor-{secrets.token_hex(4)}", "floor")
    rig.helper(
        "tests.bench.echo_matrix",
        *("--homeserver", rig.synapse.url, "--user-id", floor.user_id),
        *("--access-token", floor.access_token, "--device-id", floor.device_id),
    )
    rooms = {
        "squidbot": rig.room_with(daemon.name),
        "floor": rig.room_with(floor.user_id[1:].partition(":")[0]),
    }
    count = 8 if rig.quick else 30
    rig.say(f"{count} questions to each of two bots on Matrix")
    took: dict[str, list[float]] = {name: [] for name in rooms}
    for number in range(_WARM_UP + count):
        for name, room in rooms.items():
            took_ms = _ask(rig, room, f"question {number}")
            if number >= _WARM_UP:
                took[name].append(took_ms)
    daemon.stop()
    return [
        Figure(
            f"question to answer: {label}",
            share(took["squidbot"], part),
            "ms",
            floor=share(took["floor"], part),
            floor_is="an echo bot on bare nio",
        )
        for part, label in ((0.5, "p50"), (0.95, "p95"))
    ]


def _ask(rig: Rig, room: str, text: str) -> float:
    begun = time.perf_counter()
    rig.alice.send(room, text)
    rig.alice.wait_for_message(lambda event: event.room_id == room and text in event.body, timeout_s=30)
    return (time.perf_counter() - begun) * 1000
