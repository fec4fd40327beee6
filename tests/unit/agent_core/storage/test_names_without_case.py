"""
File systems on which ``a`` and ``A`` are one file: conversations and memories never meet in one.

Such a disk is played by a link: a home in which WORKSPACE is workspace. The names are then compared without
case, which is what such a disk does.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import SessionKey
from agent_core.models import MemoryDocument, MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.storage_integrity import histories
from gateway.operations.privacy.personal_histories import KeptFiles
from tests.clock import ManualClock

ONE, TWO = SessionKey("matrix", "!AbCd:hs.test"), SessionKey("matrix", "!aBcD:hs.test")
ROOMS = [MemoryScope(ScopeKind.ROOM, str(key)) for key in (ONE, TWO)]
KEYS = st.builds(SessionKey, st.sampled_from(["m", "M"]), st.text("aAbBé:!", min_size=1, max_size=60))


def opened(home: Path) -> JsonlMemory:
    return JsonlMemory(home, clock=ManualClock())


@pytest.fixture
def caseless(tmp_path: Path) -> Path:
    home = tmp_path / "h"
    (home / "workspace").mkdir(parents=True)
    (home / "WORKSPACE").symlink_to("workspace")
    return home


async def filled(home: Path) -> JsonlMemory:
    memory = opened(home)
    for key, room in zip((ONE, TWO), ROOMS, strict=True):
        await memory.append_message(str(key), Message(role="user", content=str(key)), durable=True)
        await memory.save_consolidation(str(key), summary=f"of {key}", cursor=1, base_cursor=0)
        await memory.save_global_memory(room, f"- of {key}")
    return memory


async def read(memory: JsonlMemory) -> list[tuple[str, str | None, str]]:
    found = []
    for key, room in zip((ONE, TWO), ROOMS, strict=True):
        tail = await memory.load_history(str(key), max_messages=5)
        document: MemoryDocument = await memory.load_global_memory(room)
        found.append((str(key), tail.summary, document.text))
    return found


EXPECTED = [(str(key), f"of {key}", f"- of {key}") for key in (ONE, TWO)]


@given(KEYS, KEYS)
def test_no_two_names_are_the_same_but_for_their_case(one: SessionKey, two: SessionKey) -> None:
    """Every session has one name there, and it is also told that it is its own."""
    assert (one.caseless_name.lower() == two.caseless_name.lower()) == (one == two)
    assert one.is_named(one.caseless_name)
    assert one.is_named(two.caseless_name) == (one == two)


async def test_two_conversations_have_two_files_each(caseless: Path) -> None:
    """Histories, records, summaries and memories: all apart, all read again, and found by whoever lists them."""
    memory = await filled(caseless)
    assert await read(opened(caseless)) == EXPECTED

    files = [path.relative_to(caseless) for path in caseless.rglob("*") if "WORKSPACE" not in path.parts]
    assert len({str(path).lower() for path in files}) == len(files)
    keys = [str(ONE), str(TWO)]
    assert sorted(await memory.sessions()) == sorted(keys)
    assert sorted(str(key) for key, _ in histories(memory.layout)) == sorted(keys)
    assert sorted(str(one.key) for one in KeptFiles(memory.layout).histories()) == sorted(keys)
    index = SearchIndex(caseless / "search.db", memory.layout)
    assert sorted(name for name, _ in index._histories()) == sorted(keys)
    await index.aclose()


async def test_a_home_keeps_its_names(caseless: Path, tmp_path: Path) -> None:
    """One that was made where case counts is read as it is, there and here; and so is one that moves back."""
    shutil.rmtree(caseless)
    made = await filled(caseless)
    assert {made.layout.name(key) for key in (ONE, TWO)} == {ONE.file_name, TWO.file_name}
    here = tmp_path / "moved"
    shutil.copytree(caseless, here)
    (here / "workspace").mkdir(exist_ok=True)
    (here / "WORKSPACE").symlink_to("workspace")
    assert await read(opened(here)) == EXPECTED

    there = tmp_path / "a" / "h"
    await filled(_caseless_at(tmp_path / "b"))
    shutil.copytree(tmp_path / "b", there)
    shutil.rmtree(there / "WORKSPACE")  # copied from the link
    assert await read(opened(there)) == EXPECTED


def _caseless_at(home: Path) -> Path:
    (home / "workspace").mkdir(parents=True)
    (home / "WORKSPACE").symlink_to("workspace")
    return home
