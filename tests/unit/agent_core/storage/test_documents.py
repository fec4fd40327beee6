"""Memory documents on disk: editors, crashes in the middle of a write, several processes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from agent_core.errors import MemoryConflict
from agent_core.models import MemoryDocument, MemoryScope, ScopeKind
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.storage_child import in_child

SESSION = "matrix/!room%3ahs.test"
OWNER = MemoryScope(ScopeKind.OWNER)


def opened(home: Path) -> JsonlMemory:
    return JsonlMemory(home, clock=ManualClock())


@pytest.fixture
def memory(tmp_path: Path) -> JsonlMemory:
    return opened(tmp_path)


async def test_an_edit_by_hand_becomes_a_version(memory: JsonlMemory) -> None:
    """What somebody types into MEMORY.md is read, kept as a version of its own, and protected by it."""
    await memory.save_global_memory(OWNER, "- tea", session_id=SESSION, turn="1")
    path = memory.layout.document(OWNER)
    path.write_text("- coffee\r\n")
    edited_at = datetime(2026, 1, 2, tzinfo=UTC)
    os.utime(path, (edited_at.timestamp(), edited_at.timestamp()))

    with pytest.raises(MemoryConflict) as caught:
        await memory.save_global_memory(OWNER, "- tea and cake", base_version=1)
    assert (caught.value.current_text, caught.value.current_version) == ("- coffee\r\n", 2)
    assert await memory.load_global_memory(OWNER) == MemoryDocument("- coffee\r\n", 2)
    await memory.save_global_memory(OWNER, "- coffee and cake", base_version=2)
    versions = await opened(memory.layout.home).memory_versions(OWNER)
    assert [each[0].text for each in versions] == ["- tea", "- coffee\r\n", "- coffee and cake"]
    assert versions[1][1:] == (edited_at, "", "")


async def test_a_document_that_was_there_first_is_version_one(memory: JsonlMemory) -> None:
    """A MEMORY.md that a person brought along is noticed, broken characters and all."""
    path = memory.layout.document(OWNER)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"- caf\xe9\n")

    assert await memory.load_global_memory(OWNER) == MemoryDocument("- caf\ufffd\n", 1)
    assert await opened(memory.layout.home).load_global_memory(OWNER) == MemoryDocument("- caf\ufffd\n", 1)


async def test_a_deleted_document_is_an_edit_too(memory: JsonlMemory) -> None:
    """Deleting MEMORY.md empties the memory and can be undone from the versions."""
    await memory.save_global_memory(OWNER, "- tea")
    memory.layout.document(OWNER).unlink()

    assert await memory.load_global_memory(OWNER) == MemoryDocument("", 2)
    assert [each[0].text for each in await memory.memory_versions(OWNER)] == ["- tea", ""]


async def test_a_write_cut_off_before_its_rename_is_finished(memory: JsonlMemory) -> None:
    """If the process dies after the version was kept, the next one puts the document in place."""
    await memory.save_global_memory(OWNER, "old")
    await memory.save_global_memory(OWNER, "new", session_id=SESSION)
    path = memory.layout.document(OWNER)
    path.rename(path.with_name("MEMORY.md.next"))
    path.write_text("old")

    again = opened(memory.layout.home)
    assert await again.load_global_memory(OWNER) == MemoryDocument("new", 2)
    assert path.read_text() == "new"
    assert not path.with_name("MEMORY.md.next").exists()
    assert len(await again.memory_versions(OWNER)) == 2


async def test_a_write_cut_off_before_its_version_never_was(memory: JsonlMemory) -> None:
    """A prepared document without its version, and a torn version, change nothing."""
    await memory.save_global_memory(OWNER, "old")
    path = memory.layout.document(OWNER)
    path.with_name("MEMORY.md.next").write_text("new")
    with memory.layout.versions(OWNER).open("ab") as file:
        file.write(b'{"version":2,"time":"2026-')

    again = opened(memory.layout.home)
    assert await again.load_global_memory(OWNER) == MemoryDocument("old", 1)
    assert await again.save_global_memory(OWNER, "newer", base_version=1) == MemoryDocument("newer", 2)
    assert [each[0].version for each in await again.memory_versions(OWNER)] == [1, 2]


async def test_an_edit_after_a_cut_off_write_wins(memory: JsonlMemory) -> None:
    """What a person typed meanwhile is never overwritten by a write that is caught up on."""
    await memory.save_global_memory(OWNER, "old")
    await memory.save_global_memory(OWNER, "new")
    path = memory.layout.document(OWNER)
    path.rename(path.with_name("MEMORY.md.next"))
    path.write_text("typed by hand")

    assert await opened(memory.layout.home).load_global_memory(OWNER) == MemoryDocument("typed by hand", 3)


async def test_two_processes_cannot_wipe_each_others_facts(tmp_path: Path) -> None:
    """Writers in different processes are held to the same comparison."""
    code = """
        from agent_core.errors import MemoryConflict
        async def main():
            for number in range(15):
                while True:
                    document = await memory.load_global_memory(owner)
                    try:
                        await memory.save_global_memory(
                            owner, f"{document.text}{os.getpid()} {number}\\n", base_version=document.version
                        )
                        break
                    except MemoryConflict:
                        pass
        anyio.run(main)
    """
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(anyio.to_thread.run_sync, in_child, code, tmp_path)

    facts = (tmp_path / "workspace" / "MEMORY.md").read_text().splitlines()
    assert len(facts) == len(set(facts)) == 30
    versions = await opened(tmp_path).memory_versions(OWNER)
    assert [each[0].version for each in versions] == list(range(1, 31))


async def test_a_giant_edit_is_not_copied_but_kept(memory: JsonlMemory) -> None:
    """A document of megabytes is read, gets no version, and is set aside when it is replaced."""
    await memory.save_global_memory(OWNER, "small")
    path = memory.layout.document(OWNER)
    path.write_text("x" * 3_000_000)

    document = await memory.load_global_memory(OWNER)
    assert (len(document.text), document.version) == (3_000_000, 2)
    assert await memory.load_global_memory(OWNER) == document
    await memory.save_global_memory(OWNER, "small again", base_version=2)
    assert path.with_name("MEMORY.md.kept-2").stat().st_size == 3_000_000
    assert len(await memory.memory_versions(OWNER)) == 2
