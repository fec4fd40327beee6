"""The search in files keeps the contract, and the contract catches one that does not ask whose it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_core.memory_ports import SearchRequest
from tests.contract.search import SearchContract, find_the_word_itself_behind_many_forms
from tests.search_house import OWNER, Harness, complete_house


class TestFiles(SearchContract):
    """Everything must be found alike, whether it is in the index or not yet."""

    @pytest.fixture(params=["indexed", "unread"])
    async def house(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        """Everything must be found alike, whether it is in the index or not yet."""
        async with complete_house(tmp_path, indexed=request.param == "indexed") as house:
            yield house


async def test_the_word_itself_is_found_behind_many_forms(tmp_path: Path) -> None:
    async with complete_house(tmp_path, indexed=True) as house:
        await find_the_word_itself_behind_many_forms(house)


async def test_the_contract_catches_a_search_over_all_scopes(tmp_path: Path) -> None:
    """Negative control: the owner's search, whoever asks."""
    house = Harness(tmp_path)
    search = house.index.search

    async def over_all(asked: SearchRequest) -> Any:
        return await search(replace(asked, scope=OWNER))

    house.index.search = over_all  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        await SearchContract().test_nobody_finds_what_another_one_said(house)
    await house.index.aclose()
