"""Whose words a text is made of is kept beside it: whoever is forgotten must not stay there by name."""

from __future__ import annotations

import pytest

from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.provenance import Trust, person, trust_of
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from gateway.operations.privacy.person_erasure import forget_person
from tests.home_world import ALICE, fill
from tests.integration.test_person_data import NOW, bob

BOB_AT_HOME = "@bob:hs.test"


@pytest.fixture
async def home(tmp_path):
    """An answer to Alice, a summary and a memory document were made with Bob's words."""
    filled = await fill(tmp_path / "home")
    memory = JsonlMemory(filled.home.root, clock=filled.clock)
    source = (person(BOB_AT_HOME, filled.clock.now()),)
    told = Message(role="assistant", content="somebody likes tea", scope="owner", origins=source)
    await memory.append_message(str(ALICE), told)
    await memory.save_consolidation(str(ALICE), summary="tea is liked", cursor=1, origins=source)
    alone = MemoryScope(ScopeKind.PERSON, "@alice:hs.test")
    await memory.save_global_memory(alone, "- tea", origins=source, turn="another")
    return filled


async def test_their_name_goes_and_the_trust_stays(home):
    """Not a byte of the address is left; a line that somebody else's words went into is still known as such."""
    root = home.home.root
    found = [path for path in root.rglob("*") if path.is_file() and BOB_AT_HOME in path.read_text("latin-1")]
    assert any(path.suffix == ".jsonl" for path in found)
    forget_person(Layout(root, root / "workspace"), home.home.database, bob(), now=NOW)
    left = [p.name for p in root.rglob("*") if p.is_file() and BOB_AT_HOME in p.read_text("latin-1")]
    assert left == ["squidbot.yaml"]  # who may write is the operator's setting
    memory = JsonlMemory(root, clock=home.clock)
    lines = (await memory.load_history(str(ALICE))).messages
    (line,) = (each for each in lines if each.content == "somebody likes tea")
    assert trust_of(line.sources) is Trust.KNOWN
    document = await memory.load_global_memory(MemoryScope(ScopeKind.PERSON, "@alice:hs.test"))
    assert (document.text, trust_of(document.origins)) == ("- tea", Trust.KNOWN)
