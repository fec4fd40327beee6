"""What every `MemoryPort` promises of memory documents: a part of `MemoryContract`."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from agent_core.errors import MemoryConflict
from agent_core.memory_ports import MemoryPort
from agent_core.models import MemoryDocument, MemoryScope, ScopeKind
from agent_core.provenance import untrusted_origin
from tests.clock import EPOCH, ManualClock

SESSION = "matrix/!room%3ahs.test"
OTHER = "email/<root@mail.test>"
OWNER = MemoryScope(ScopeKind.OWNER)
BOB = MemoryScope(ScopeKind.PERSON, "@bob:hs.test")
ROOM = MemoryScope(ScopeKind.ROOM, SESSION)


class DocumentContract:
    """The promises of `MemoryPort` on memory documents."""

    async def test_document_starts_empty_and_counts_versions(self, memory: MemoryPort) -> None:
        """Version 0 is the document that was never written; each write counts one up."""
        assert await memory.load_global_memory(OWNER) == MemoryDocument("", 0)
        assert await memory.save_global_memory(OWNER, "- likes tea") == MemoryDocument("- likes tea", 1)
        assert await memory.save_global_memory(OWNER, "") == MemoryDocument("", 2)
        assert await memory.load_global_memory(OWNER) == MemoryDocument("", 2)

    async def test_scopes_do_not_mix(self, memory: MemoryPort) -> None:
        """Owner, person and room each have their own document."""
        for scope in (OWNER, BOB, ROOM):
            await memory.save_global_memory(scope, f"of {scope}")

        for scope in (OWNER, BOB, ROOM):
            assert (await memory.load_global_memory(scope)).text == f"of {scope}"

    async def test_a_person_or_room_has_a_name(self, memory: MemoryPort) -> None:
        """A scope that should have a name and has none is a mistake, not somebody's document."""
        for kind in (ScopeKind.PERSON, ScopeKind.ROOM):
            with pytest.raises(ValueError):
                await memory.load_global_memory(MemoryScope(kind))

    async def test_every_version_is_kept(self, memory: MemoryPort, clock: ManualClock) -> None:
        """Each version stays readable with its time, its session and its turn, oldest first."""
        began = clock.now()
        await memory.save_global_memory(OWNER, "one", session_id=SESSION, turn="7")
        clock.advance(60)
        await memory.save_global_memory(OWNER, "two\nlines\n", session_id=OTHER, turn="8")

        assert await memory.memory_versions(OWNER) == [
            (MemoryDocument("one", 1), began, SESSION, "7"),
            (MemoryDocument("two\nlines\n", 2), began + timedelta(seconds=60), OTHER, "8"),
        ]
        assert await memory.memory_versions(BOB) == []

    async def test_a_version_keeps_whose_words_it_is_made_of(self, memory: MemoryPort) -> None:
        """Until it is written anew; the earlier one still says so."""
        page = (untrusted_origin("web", "https://example.org", EPOCH),)
        await memory.save_global_memory(OWNER, "one", origins=page)
        assert (await memory.load_global_memory(OWNER)).origins == page
        await memory.save_global_memory(OWNER, "two")
        assert (await memory.load_global_memory(OWNER)).origins == ()
        assert [document.origins for document, *_ in await memory.memory_versions(OWNER)] == [page, ()]

    async def test_the_scopes_with_a_document_are_listed(self, memory: MemoryPort) -> None:
        """Those that were written to; looking at one does not make it."""
        assert await memory.memory_scopes() == []
        await memory.save_global_memory(BOB, "bob's")
        await memory.load_global_memory(OWNER)
        assert await memory.memory_scopes() == [BOB]
        await memory.save_global_memory(OWNER, "mine")
        assert set(await memory.memory_scopes()) == {OWNER, BOB}

    async def test_a_write_on_an_old_version_is_refused(self, memory: MemoryPort) -> None:
        """With a base that is not current nothing changes, and the error brings the current text."""
        await memory.save_global_memory(OWNER, "one", base_version=0)
        await memory.save_global_memory(OWNER, "two", base_version=1)

        for base in (0, 1, 3):
            with pytest.raises(MemoryConflict) as caught:
                await memory.save_global_memory(OWNER, "three", base_version=base)
            assert (caught.value.current_text, caught.value.current_version) == ("two", 2)
        assert (await memory.load_global_memory(OWNER)).text == "two"
        assert len(await memory.memory_versions(OWNER)) == 2

    async def test_the_same_write_again_changes_nothing(self, memory: MemoryPort) -> None:
        """Made again after a crash, on the same base; but where somebody has written since, it is refused."""
        saved = await memory.save_global_memory(OWNER, "one\udc80", base_version=0)
        again = await memory.save_global_memory(OWNER, "one\udc80", base_version=0)
        assert again == saved == MemoryDocument("one?", 1)
        assert len(await memory.memory_versions(OWNER)) == 1

        await memory.save_global_memory(OWNER, "two", base_version=1)
        with pytest.raises(MemoryConflict):
            await memory.save_global_memory(OWNER, "one\udc80", base_version=0)

    async def test_two_sessions_cannot_wipe_each_others_facts(self, memory: MemoryPort) -> None:
        """Of writers that all read the same version one wins; when the others merge, every fact is there."""
        refused = 0

        async def remember(number: int) -> None:
            nonlocal refused
            document = await memory.load_global_memory(OWNER)
            while True:
                await anyio.sleep(0)  # everybody has read before anybody writes
                try:
                    merged = f"{document.text}- fact {number}\n"
                    await memory.save_global_memory(OWNER, merged, base_version=document.version)
                except MemoryConflict as conflict:
                    refused += 1
                    document = MemoryDocument(conflict.current_text, conflict.current_version)
                else:
                    return

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(remember, number)

        facts = sorted((await memory.load_global_memory(OWNER)).text.splitlines())
        assert facts == [f"- fact {number}" for number in range(6)]
        assert refused > 0

    async def test_hostile_text_survives(self, memory: MemoryPort) -> None:
        """No text breaks a file; half a surrogate pair, which no file can hold, becomes a question mark."""
        text = '\ufeff{"a":1}\r\n---\n\x00\x1b[31m\u2028</memory> 🦑'
        assert (await memory.save_global_memory(OWNER, text)).text == text
        assert (await memory.load_global_memory(OWNER)) == MemoryDocument(text, 1)
        assert (await memory.save_global_memory(OWNER, "a\ud800b")).text == "a?b"
        assert (await memory.load_global_memory(OWNER)) == MemoryDocument("a?b", 2)
        await memory.save_session_summary(SESSION, "a\ud800b")
        assert await memory.load_session_summary(SESSION) == "a?b"
