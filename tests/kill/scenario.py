"""A world around a gateway that dies: people who talk, the gateway's lives, and what is left at the end."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import anyio

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from channels.base import Redelivery
from gateway.operations.privacy.personal_histories import open_histories
from gateway.store.opening import memory_in_database, opened_queue
from gateway.store.place import place_of_queue
from gateway.store.states import OutboxState
from gateway.system.clock import SystemClock
from tests.doubles.loopback import FileLoopbackServer
from tests.kill.gateway_child import GROUPS, Run
from tests.kill.nursery import REPOSITORY, Nursery
from tests.kill.oracle import Evidence, Saying
from tests.kill.tally import TALLY

__all__ = ["REPOSITORY", "Nursery", "Scenario"]

_LIVES = 40


class Scenario:
    """
    People on a loopback server, and a gateway that is started, killed and started again.

    Args:
        folder: For everything; fresh.
        nursery: Forks the gateways.
        **run: What all lives have in common, see `Run`.
    """

    def __init__(self, folder: Path, nursery: Nursery, **run: object) -> None:
        self.folder = folder
        self.run = Run(folder=str(folder), **run)  # type: ignore[arg-type]
        self.deaths = 0
        self.torn = False
        self._nursery = nursery
        self._sayings: list[Saying] = []
        self.server = FileLoopbackServer(folder / "server", redelivery=Redelivery(self.run.policy))
        self.server.groups = set(GROUPS)

    def say(self, person: str, words: str = "", *, conversation: str | None = None) -> int:
        """Somebody says the next message."""
        number = len(self._sayings) + 1
        place = conversation or f"dm-{person}"
        self.server.say(person, f"#{number} {words}".strip(), conversation=place, native_id=f"$say-{number}")
        scope = f"room:{place}" if place in GROUPS else f"person:{person}"
        self._sayings.append(Saying(number, place, words, scope))
        return number

    def burst(self, chance: random.Random, size: int) -> None:
        """Several people say something in several conversations."""
        for _ in range(size):
            person = chance.choice(["ann", "bob", "cid"])
            conversation = chance.choice([None, None, f"second-{person}", "room"])
            words = chance.choice(["", "effect", "fact", "effect fact", "slow", "effect slow"])
            self.say(person, words, conversation=conversation)

    def live(self, **changes: object) -> int:
        """One life of the gateway, until it is quiet or dies; returns how it ended."""
        ended = self._nursery.live(replace(self.run, **changes))  # type: ignore[arg-type]
        self.deaths += ended == -signal.SIGKILL
        TALLY["of the whole gateway"] += ended == -signal.SIGKILL
        self.torn = self.torn or str(changes.get("die", "")).startswith("jsonl.torn")
        return ended

    def live_until_quiet(self) -> None:
        """Lives without a planned death; the last one ends by itself."""
        ended = self.live()
        assert ended == 0, f"ended with {ended}: {self.log()[-3000:]}"

    def log(self) -> str:
        """What the gateways have logged."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def evidence(self) -> Evidence:
        """What the outside world has seen."""
        return anyio.run(self._evidence)

    async def _evidence(self) -> Evidence:
        self.server.refresh()
        home, clock = self.folder / "home", SystemClock()
        histories: dict[str, list[bytes]] = {}
        documents: dict[str, str] = {}
        place = place_of_queue(home / "gateway.db", self.run.store or None)
        store = await opened_queue(home / "gateway.db", self.run.store or None, clock=clock)
        try:
            beside = memory_in_database(store)
            memory = JsonlMemory(home, clock=clock) if beside is None else beside.memory
            assert beside is None or not any((home / "sessions").iterdir())
            for saying in self._sayings:
                with open_histories(Layout(home, home / "workspace"), place) as kept:
                    history = kept.history(SessionKey("loopback", saying.conversation))
                    lines = [raw for raw, _ in history.lines()] if history.exists() else []
                    histories[saying.conversation] = lines
                kind, _, name = saying.scope.partition(":")
                scope = MemoryScope(ScopeKind.PERSON, name)
                if kind == "room":
                    scope = MemoryScope(ScopeKind.ROOM, str(SessionKey("loopback", name)))
                documents[saying.scope] = (await memory.load_global_memory(scope)).text
            parked = await store.outbox.rows(states=[OutboxState.UNKNOWN], limit=10_000)
            stats = await store.maintenance.stats()
        finally:
            await store.aclose()
        effects = self.folder / "effects"
        return Evidence(
            said=self._sayings,
            seen=[(each.conversation, each.text) for each in self.server.seen()],
            effects=[int(line) for line in effects.read_text().split()] if effects.exists() else [],
            histories=histories,
            memory=documents,
            parked=[row.message.text for row in parked],
            deaths=self.deaths,
            queue=self.run.queue,
            torn=self.torn,
            unfiled=stats.journal_lines,
        )
