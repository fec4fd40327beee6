"""
Turns, consolidation, crashes, restarts, failing models and failing disks in any order.

After every step each message is in exactly one of three places: summarised, in the next prompt, or still waiting
for one of the two, and the history's file has only grown.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agent_core.errors import ContextTooLong, ModelUnavailable, StorageUnavailable
from agent_core.memory.manager import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.prompt import CUT_NOTE
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.doubles.consolidation import Died, FaultyMemory, ScriptedLLM, TokenKeeper
from tests.property.examples import examples

S = "matrix/!room%3ahs.test"
TOKEN = re.compile(r"\bm\d+\b")
FAULTS = [
    ("save_consolidation", "before"),
    ("save_consolidation", "after"),
    ("sync_history", "before"),
    ("load_segment", "after"),
    ("load_history", "after"),
]


def too_long(messages: Sequence[Message]) -> str:
    raise ContextTooLong("too long")


class Conversation(RuleBasedStateMachine):
    """One session of a gateway with a bad day."""

    manager_class = MemoryManager

    @initialize(
        threshold=st.sampled_from([1, 2, 3, 4, 7, 20]),
        ratio=st.sampled_from([0.1, 0.34, 0.5, 0.9]),
        context=st.sampled_from([1000, 3000, 24_000]),
    )
    def begin(self, threshold: int, ratio: float, context: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.settings = {
            "consolidation_threshold": threshold,
            "keep_recent_ratio": ratio,
            "window": lambda: (context * 4 + 2) // 3,
        }
        self.said = 0
        self.turn = 0
        self.file = b""
        self.restart()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule()
    def restart(self) -> None:
        """A new process on the same files."""
        self.memory = JsonlMemory(Path(self.folder.name), clock=self.clock)

    @rule(questions=st.integers(1, 3), words=st.sampled_from([1, 1, 1, 30, 300]))
    def talk(self, questions: int, words: int) -> None:
        """A turn, sometimes of several messages that were answered together, sometimes of many words."""
        self.turn += 1
        lines = []
        for role in ["user"] * questions + ["assistant"]:
            text = f"m{self.said} {'word ' * (words - 1)}".strip()
            lines.append(
                Message(role=role, content=text, id=f"{self.turn}.{len(lines)}", turn=str(self.turn))
            )
            self.said += 1
        anyio.run(lambda: self.memory.append_message(S, *lines))

    @rule()
    def tear(self) -> None:
        """Half a line, as a crash in the middle of a write leaves it; the turn comes again, as from a journal."""
        path = self.memory.layout.history(SessionKey.parse(S))
        if path.exists():
            with path.open("ab") as file:
                file.write(b'{"id":"torn","role":"user","cont')

    @rule()
    def consolidate(self) -> None:
        """A good visit."""
        self.visit(TokenKeeper(), self.memory)

    @rule(answer=st.sampled_from([ModelUnavailable("away"), "", "   ", RuntimeError("defect"), too_long]))
    def fail(self, answer: object) -> None:
        """A visit with a model that fails in some way."""
        before = anyio.run(self.record)
        assert self.visit(ScriptedLLM(answer), self.memory) == 0  # type: ignore[arg-type]
        assert anyio.run(self.record) == before

    @rule(fault=st.sampled_from(FAULTS), deadly=st.booleans())
    def break_down(self, fault: tuple[str, str], deadly: bool) -> None:
        """A visit in which the process dies, or the disk refuses, at some point."""

        def strike(name: str, when: str) -> None:
            if (name, when) == fault:
                raise Died if deadly else StorageUnavailable("no space")

        try:
            self.visit(TokenKeeper(), FaultyMemory(self.memory, strike))
        except Died:
            self.restart()

    @rule()
    def overtake(self) -> None:
        """Another process consolidates while this one thinks: only one of the two counts."""
        rival = self.manager(TokenKeeper(), JsonlMemory(Path(self.folder.name), clock=self.clock))

        class Overtaken(TokenKeeper):
            async def chat(
                self, messages: Sequence[Message], tools: object, *, stream: bool = True
            ) -> object:  # type: ignore[override]
                await rival.consolidate_if_due(S)
                return await super().chat(messages, ())

        self.visit(Overtaken(), self.memory)

    @precondition(lambda self: getattr(self, "said", 0) > 0)
    @rule(content=st.sampled_from([b"", b"{", b'{"last_consolidated": "x"}', b"\x00" * 50]))
    def damage_copy(self, content: bytes) -> None:
        """Somebody writes into the readable copy of the summary: nobody believes it while there is a record."""
        path = self.memory.layout.summary(SessionKey.parse(S))
        if path.exists() and self.memory.layout.record(SessionKey.parse(S)).exists():
            path.write_bytes(content)
            self.restart()

    @precondition(lambda self: getattr(self, "said", 0) > 0)
    @rule(content=st.sampled_from([b"", b"{", b'{"last_consolidated": "x"}', b"\x00" * 50]))
    def damage_record(self, content: bytes) -> None:
        """The record itself is lost: the cursor is 0, and everything is summarised again."""
        path = self.memory.layout.record(SessionKey.parse(S))
        if path.exists():
            path.write_bytes(content)
            self.restart()

    # ── what holds ──

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "memory"):
            return
        anyio.run(self.check)

    async def check(self) -> None:
        summary, cursor = await self.record()
        everything = await self.memory.load_segment(S, start=0, max_messages=10_000)
        names = {
            int(message.content.split()[0][1:]): position
            for message, position in zip(everything.messages, everything.positions, strict=True)
        }
        assert sorted(names) == list(range(self.said))
        summarised = [int(token[1:]) for token in TOKEN.findall(summary)]
        assert summarised == [number for number in sorted(names) if names[number] < cursor]
        built = await self.manager(None, self.memory).build_messages(S, "sys", "now")
        shown = [int(TOKEN.findall(message.content)[0][1:]) for message in built[1:-1]]
        after = [number for number in sorted(names) if names[number] >= cursor]
        assert shown == after[len(after) - len(shown) :]
        assert len(shown) == len(after) or CUT_NOTE in built[0].content
        path = self.memory.layout.history(SessionKey.parse(S))
        now = path.read_bytes() if path.exists() else b""
        assert now.startswith(self.file)
        self.file = now

    async def record(self) -> tuple[str, int]:
        return await self.memory.load_session_summary(S), await self.memory.load_consolidated_cursor(S)

    def manager(self, llm: ScriptedLLM | None, memory: object) -> MemoryManager:
        return self.manager_class(memory, llm=llm, **self.settings)  # type: ignore[arg-type]

    def visit(self, llm: ScriptedLLM, memory: object) -> int:
        async def main() -> int:
            return (await self.manager(llm, memory).consolidate_if_due(S)).segments

        return anyio.run(main)


class _TwoSteps(MemoryManager):
    """As the seeds had it: first the summary, then the cursor."""

    async def _save(self, session_id: str, segment: object, summary: str) -> None:
        await self._storage.save_session_summary(session_id, summary)
        self._strike()
        await self._storage.save_consolidated_cursor(session_id, segment.end)  # type: ignore[attr-defined]

    def _strike(self) -> None:
        fault = getattr(self._storage, "_fault", None)
        if fault is not None:
            fault("save_consolidation", "before")


class _CareLess(Conversation):
    manager_class = _TwoSteps


OPTIONS = settings(
    max_examples=examples(20),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(300 if examples(1) == 1 else 3600)
def test_nothing_is_lost_or_doubled_whatever_happens() -> None:
    """Random interleavings hold the invariants."""
    run_state_machine_as_test(Conversation, settings=OPTIONS)


def _crash_between_summary_and_cursor(machine: type[Conversation]) -> None:
    conversation = machine()
    try:
        conversation.begin(threshold=3, ratio=0.34, context=24_000)
        for _ in range(4):
            conversation.talk(questions=1, words=1)
            anyio.run(conversation.check)
        conversation.break_down(("save_consolidation", "before"), deadly=True)
        anyio.run(conversation.check)
        conversation.consolidate()
        anyio.run(conversation.check)
    finally:
        conversation.teardown()


def test_the_invariants_catch_a_careless_manager() -> None:
    """Negative control: summary and cursor in two writes, and a crash between them summarises twice."""
    _crash_between_summary_and_cursor(Conversation)
    with pytest.raises(AssertionError):
        _crash_between_summary_and_cursor(_CareLess)
