"""Both memories keep the contract, and the contract catches one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_core.memory_ports import MemoryPort
from agent_core.models import MemoryDocument, MemoryScope
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.contract.memory import MemoryContract
from tests.doubles.in_memory_storage import InMemoryMemory


class TestInMemoryMemory(MemoryContract):
    """The twin."""

    @pytest.fixture
    def memory(self, clock: ManualClock) -> MemoryPort:
        return InMemoryMemory(clock=clock)


class TestJsonlMemory(MemoryContract):
    """The files."""

    @pytest.fixture
    def memory(self, clock: ManualClock, tmp_path: Path) -> MemoryPort:
        return JsonlMemory(tmp_path / "home", clock=clock)


class _Reopened:
    """The files, opened anew for every call: nothing may live in memory alone."""

    def __init__(self, home: Path, clock: ManualClock) -> None:
        self._home = home
        self._clock = clock

    def __getattr__(self, name: str) -> object:
        return getattr(JsonlMemory(self._home, clock=self._clock), name)


class TestJsonlMemoryReopened(MemoryContract):
    """The files, by a new process each time."""

    @pytest.fixture
    def memory(self, clock: ManualClock, tmp_path: Path) -> object:
        return _Reopened(tmp_path / "home", clock)

    test_appends_at_once_are_all_kept = None  # type: ignore[assignment] # one process writes histories


class _Forgetful(InMemoryMemory):
    """A naive memory: the last writer wins."""

    async def save_global_memory(
        self,
        scope: MemoryScope,
        text: str,
        *,
        base_version: int | None = None,
        session_id: str = "",
        turn: str = "",
    ) -> MemoryDocument:
        return await super().save_global_memory(scope, text)


async def test_the_contract_catches_a_memory_without_comparison() -> None:
    """Negative control: where the last writer wins, facts are lost and the contract says so."""
    with pytest.raises(AssertionError):
        await MemoryContract().test_two_sessions_cannot_wipe_each_others_facts(_Forgetful())
