"""Finding what means the same in other words; with the encoder where it is installed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import anyio
import pytest

from agent_core.memory.manager import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage.search_index import SearchIndex, vectors
from agent_core.storage.search_index.vectors import missing_for_vectors
from agent_core.storage.search_index.vectors_child import _weight as weight
from agent_core.storage.search_index.word_splitting import first_sentences as sentences
from gateway.settings import Settings
from gateway.settings.loading import _soft_warnings
from tests.contract.vectors import VectorsContract
from tests.doubles.encoder import ScriptedEncoder, SlowEncoder, use_encoder
from tests.search_house import BOB, OWNER, A, B, Harness

needs_encoder = pytest.mark.skipif(bool(missing_for_vectors()), reason="the extra recall is not installed")


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may take as long as it wants to start."""
    monkeypatch.setattr(vectors, "_SEARCH_LIMIT_S", 300.0)


class _VectorsHarness(Harness):
    def opened(self) -> SearchIndex:
        return SearchIndex(self.home / "search.db", self.memory.layout, vectors=True)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[_VectorsHarness]:
    house = _VectorsHarness(tmp_path)
    yield house
    await house.index.aclose()


@pytest.fixture
async def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_VectorsHarness]:
    """With an encoder that every machine has."""
    use_encoder(monkeypatch)
    house = _VectorsHarness(tmp_path)
    yield house
    await house.index.aclose()


@pytest.fixture
async def slow(scripted: _VectorsHarness, monkeypatch: pytest.MonkeyPatch) -> _VectorsHarness:
    """A home with vectors, and a process that does not start yet."""
    await scripted.say(A, "Minka is our cat.", "How nice!")
    await scripted.index.update_all()
    await scripted.index.aclose()
    use_encoder(monkeypatch, SlowEncoder)
    monkeypatch.setattr(SlowEncoder, "may_start", anyio.Event())
    scripted.index = scripted.opened()
    return scripted


def orphans(house: Harness) -> int:
    """The number of vectors whose text is gone."""
    db = sqlite3.connect(house.home / "search.db")
    return db.execute("SELECT count(*) FROM vectors WHERE line NOT IN (SELECT id FROM lines)").fetchone()[0]


def rows_of_vectors(index: Path, like: str) -> list[bytes]:
    """The vectors of the lines with a text; none while the index is being made."""
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as db,
    ):
        query = "SELECT v.vectors FROM vectors v JOIN lines l ON l.id = v.line WHERE l.text LIKE ?"
        return [raw for (raw,) in db.execute(query, (f"%{like}%",))]
    return []


def kept(house: Harness) -> int:
    return sqlite3.connect(house.home / "search.db").execute("SELECT count(*) FROM vectors").fetchone()[0]


def test_a_text_becomes_bounded_sentences():
    assert sentences("One. Two?\n\nThree") == ["One.", "Two?", "Three"]
    assert sentences("猫がいます。名前は？") == ["猫がいます。", "名前は？"]
    assert sentences("") == sentences(" \n ") == []
    assert max(map(len, sentences("a" * 1_000_000))) == 400
    assert len(sentences("a. " * 1000)) == 16


async def test_without_the_encoder_there_are_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vectors, "missing_for_vectors", lambda: "pip")
    house = _VectorsHarness(tmp_path)
    await house.say(A, "Our cat is called Minka.", "How nice!")
    await house.index.update_all()
    assert await house.found("cat") == ["Our cat is called Minka."]
    assert await house.found("pet name") == []


class TestFiles(VectorsContract):
    """In the index of the home folder."""

    @pytest.fixture
    def house(self, scripted: _VectorsHarness) -> Harness:
        return scripted


async def test_without_likeness_only_words_are_found(
    scripted: _VectorsHarness, monkeypatch: pytest.MonkeyPatch
):
    """The control of the tests here."""
    monkeypatch.setattr("agent_core.storage.search_index.search_index.similar_lines", lambda *_: {})
    await scripted.say(A, "Minka is our cat.", "How nice!")
    await scripted.index.update_all()
    assert await scripted.found("pet name") == []


async def test_an_index_from_before_the_setting_is_searched_and_kept(scripted: _VectorsHarness):
    """The search comes before anything is written."""
    before = Harness(scripted.home)
    before.clock = scripted.clock
    await before.say(A, "Minka is our cat.", "How nice!")
    await before.index.update_all()
    await before.index.aclose()
    assert await scripted.found("cat") == ["Minka is our cat."]
    assert not scripted.index._damaged
    await scripted.index.update_all()
    assert await scripted.found("pet") == ["Minka is our cat."]


async def test_a_turn_does_not_wait_for_the_process(slow: _VectorsHarness):
    """The words alone are looked up; what follows the turn starts it for the next one."""
    manager = MemoryManager(slow.memory, search=slow.index)
    assert [each.role for each in await manager.build_messages(B, "sys", "The pet name?")] == [
        "system",
        "user",
    ]
    assert "Minka" in (await manager.build_messages(B, "sys", "Our cat name?"))[1].content
    SlowEncoder.may_start.set()
    await slow.index.update(A)
    assert "Minka" in (await manager.build_messages(B, "sys", "The pet name?"))[1].content


async def test_a_search_of_the_model_waits_for_the_process(slow: _VectorsHarness):
    """The control: the same process is not there at once, and a search that waits finds what it knows."""
    found: list[str] = []

    async def search() -> None:
        found.extend(await slow.found("pet name"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(search)
        await anyio.wait_all_tasks_blocked()
        assert await slow.found("pet name", waits=False) == found == []
        SlowEncoder.may_start.set()
    assert found == await slow.found("pet name", waits=False) == ["Minka is our cat."]


async def test_the_newest_vectors_are_searched_before_the_oldest_are_sent(
    scripted: _VectorsHarness, monkeypatch: pytest.MonkeyPatch
):
    """A search has its turn between two pages, and finds everything in the end."""
    monkeypatch.setattr(vectors, "_PAGE", 2)
    said = ["The cat is old.", *(f"The weather of day {day}." for day in range(5)), "The railway is late."]
    await scripted.say(A, *said)
    await scripted.index.update_all()
    encoder = cast("ScriptedEncoder", scripted.index.vectors.process)
    assert not encoder.scopes  # nobody has searched
    assert await scripted.found("train") == ["The railway is late."]
    assert len(encoder.scopes["owner"]) == 2
    assert not await scripted.found("pet")
    await scripted.say(A, "Another train.")
    await scripted.index.update(A)
    assert await scripted.found("pet") == ["The cat is old."]
    assert sorted(line for line, *_ in encoder.scopes["owner"]) == list(range(1, 9))


async def test_no_older_vectors_are_sent_than_are_searched(
    scripted: _VectorsHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vectors, "_PAGE", 2)
    await scripted.say(A, *(f"The cat of day {day}." for day in range(9)))
    await scripted.index.update_all()
    encoder = cast("ScriptedEncoder", scripted.index.vectors.process)
    encoder.most = 4
    await scripted.found("pet")
    await scripted.index.update_all()
    assert [line for line, *_ in encoder.scopes["owner"]] == [9, 8, 7, 6]


async def test_vectors_are_erased_with_their_text(scripted: _VectorsHarness):
    """What was taken back, a history that was written anew, one that is gone, and an index that was removed."""
    for session in (A, B):
        await scripted.say(session, "Minka is our cat.", turn=f"of {session}")
        await scripted.say(session, "How nice!")
    await scripted.index.update_all()
    assert kept(scripted) == 4
    mark = Message(role="system", content="taken back", id="u", turn="u", scope="owner", undoes=f"of {A}")
    await scripted.memory.append_message(A, mark)
    await scripted.index.update_all()
    assert (kept(scripted), orphans(scripted)) == (3, 0)
    history = scripted.memory.layout.history(SessionKey.parse(B))
    history.write_bytes(history.read_bytes().replace(b"cat", b"dog"))
    os.replace(shutil.copy(history, f"{history}.new"), history)
    await scripted.index.update_all()
    assert (kept(scripted), orphans(scripted)) == (3, 0)
    assert await scripted.found("pet") == []
    history.unlink()
    await scripted.index.update_all()
    assert (kept(scripted), orphans(scripted)) == (1, 0)
    await scripted.index.rebuild()
    assert kept(scripted) == 0
    await scripted.index.update_all()
    assert kept(scripted) == 1


_FILLS = """
import anyio, sys
from contextlib import closing, suppress
from pathlib import Path
import pytest
from tests.doubles.encoder import use_encoder
from tests.unit.agent_core.storage import test_vectors as t

use_encoder(pytest.MonkeyPatch())
anyio.run(t._VectorsHarness(Path(sys.argv[1])).index.update_all)
print("done", flush=True)
"""


@pytest.mark.parametrize("batches", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 4))])
async def test_a_kill_while_it_is_filled_or_erased_loses_and_leaves_nothing(
    scripted: _VectorsHarness, batches: int
):
    """Killed by SIGKILL while vectors are made, and again after a part was taken back: the rest is made."""
    for number in range(140):
        await scripted.say(A, f"Minka is our cat {number}.", turn=f"t{number % 2}")
    for round_ in range(2):
        if round_:
            mark = Message(role="system", content="undone", id="u", turn="u", scope="owner", undoes="t1")
            await scripted.memory.append_message(A, mark)
        child = subprocess.Popen([sys.executable, "-c", _FILLS, str(scripted.home)], stdout=subprocess.PIPE)
        for _ in range(batches):
            assert child.stdout.readline() in (b"encoding\n", b"done\n", b"")
        child.kill()
        child.wait()
        child.stdout.close()
        assert orphans(scripted) == 0
    await scripted.index.update_all()
    assert (kept(scripted), orphans(scripted)) == (70, 0)
    found = await scripted.found("pet")
    assert found
    assert all(int(each[:-1].split()[-1]) % 2 == 0 for each in found)


@needs_encoder
@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Our cat is called Minka.", "pet name"),
        ("Unsere Katze heißt Minka.", "Haustier Name"),
        ("うちの猫はミンカといいます。", "ペットの名前"),
        ("Нашу кошку зовут Минка.", "имя питомца"),
        ("Nuestra gata se llama Minka.", "nombre de la mascota"),
        ("Our cat is called Minka.", "имя питомца"),
    ],
)
async def test_other_words_of_the_same_meaning_find_it(house: _VectorsHarness, said: str, asked: str):
    """Also in another language; not another scope's, and not what was said before a time."""
    await house.say(A, "The train was late again.", "That is a pity.", said, "How nice!")
    await house.say(B, "My dog is called Rex.", scope=BOB)
    await house.index.update_all()
    assert (await house.found(asked))[0] == said
    assert said not in await house.found(asked, BOB)
    assert said not in await house.found(asked, since=house.clock.now())


def test_a_short_sentence_counts_less():
    """It names a thing and says less of it, but is more like a question about that."""
    assert weight("word " * 20) == weight("word " * 40) == 1.0
    assert (
        0
        < weight("Minka.")
        < weight("Our cat is called Minka.")
        < weight("うちの猫はミンカという名前の猫です。")
        < 1
    )
    assert weight("word " * 19 + "word?") < 1


@needs_encoder
async def test_vectors_go_with_their_text_and_are_made_once(house: _VectorsHarness):
    """What was taken back has none; after an end in the middle the rest is made."""
    await house.say(A, "Our cat is called Minka.", turn="t1")
    await house.say(A, "The train was late again.", "A boat.")
    await house.index.update_all()
    assert kept(house) == 3
    db = sqlite3.connect(house.home / "search.db")
    db.execute("DELETE FROM vectors WHERE id > 1")  # as if it had been killed before these
    db.commit()
    await house.index.aclose()

    house.index = house.opened()
    await house.index.update_all()
    assert kept(house) == 3
    mark = Message(role="system", content="taken back", id="u", turn="u", scope="owner", undoes="t1")
    await house.memory.append_message(A, mark)
    await house.index.update_all()
    assert "Our cat is called Minka." not in await house.found("pet name")
    assert not db.execute("SELECT 1 FROM vectors WHERE id = 1").fetchone()


@needs_encoder
async def test_a_scope_that_the_process_has_dropped_is_sent_whole(house: _VectorsHarness):
    """Also if something new is to be added to it: else what was said before would not be found."""
    await house.say(A, "Our cat is called Minka.", "How nice!")
    await house.index.update_all()
    assert (await house.found("pet name"))[0] == "Our cat is called Minka."
    dropped = {"search": "x", "scope": str(OWNER), "mark": -1, "since": 0}
    assert await house.index.vectors._asked(dropped, 60) is None
    await house.say(A, "The train was late again.", "That is a pity.")
    await house.index.update_all()
    assert (await house.found("pet name"))[0] == "Our cat is called Minka."


@needs_encoder
async def test_a_process_that_ended_is_sent_everything_again(house: _VectorsHarness):
    await house.say(A, "The train was late again.", "Our cat is called Minka.")
    await house.index.update_all()
    assert (await house.found("pet name"))[0] == "Our cat is called Minka."
    await house.index.vectors.process.aclose()
    assert (await house.found("pet name"))[0] == "Our cat is called Minka."


def test_the_setting_without_the_encoder_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """At the start and in ``squidbot check``, which both show these; nothing without the setting."""
    monkeypatch.setattr(vectors, "missing_for_vectors", lambda: "pip install '.[recall]'")
    assert not any("memory.vectors" in each for each in _soft_warnings(Settings()))
    told = _soft_warnings(Settings.model_validate({"memory": {"vectors": True}}))
    assert (
        "memory.vectors: install the encoder with pip install '.[recall]'; until then searches use words only"
        in told
    )
