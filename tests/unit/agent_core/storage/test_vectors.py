"""Finding what means the same in other words; with the encoder where it is installed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_core.models import Message
from agent_core.storage.search_index import SearchIndex, vectors
from agent_core.storage.search_index.vectors import fuse, missing_for_vectors
from agent_core.storage.search_index.vectors_child import sentences
from gateway.settings import Settings, _soft_warnings
from tests.search_house import BOB, A, B, House

needs_encoder = pytest.mark.skipif(bool(missing_for_vectors()), reason="the extra recall is not installed")


class _House(House):
    def opened(self) -> SearchIndex:
        return SearchIndex(self.home / "search.db", self.memory.layout, vectors=True)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[_House]:
    house = _House(tmp_path)
    yield house
    await house.index.aclose()


def kept(house: House) -> int:
    return sqlite3.connect(house.home / "search.db").execute("SELECT count(*) FROM vectors").fetchone()[0]


def test_what_both_rankings_have_stands_first():
    assert fuse([1, 2, 3], [3, 4])[0] == 3
    assert fuse([1, 2], []) == [1, 2]


def test_a_text_becomes_bounded_sentences():
    assert sentences("One. Two?\n\nThree") == ["One.", "Two?", "Three"]
    assert sentences("猫がいます。名前は？") == ["猫がいます。", "名前は？"]
    assert sentences("") == sentences(" \n ") == []
    assert max(map(len, sentences("a" * 1_000_000))) == 400
    assert len(sentences("a. " * 1000)) == 16


async def test_without_the_encoder_there_are_words(house: _House, monkeypatch: pytest.MonkeyPatch):
    house.index.vectors._usable = False
    await house.say(A, "Our cat is called Minka.", "How nice!")
    await house.index.update_all()
    assert await house.found("cat") == ["Our cat is called Minka."]
    assert await house.found("pet name") == []


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
async def test_other_words_of_the_same_meaning_find_it(house: _House, said: str, asked: str):
    """Also in another language; not another scope's, and not what was said before a time."""
    await house.say(A, "The train was late again.", "That is a pity.", said, "How nice!")
    await house.say(B, "My dog is called Rex.", scope=BOB)
    await house.index.update_all()
    assert (await house.found(asked))[0] == said
    assert said not in await house.found(asked, BOB)
    assert said not in await house.found(asked, since=house.clock.now())


@needs_encoder
async def test_vectors_go_with_their_text_and_are_made_once(house: _House):
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
async def test_a_process_that_ended_is_sent_everything_again(house: _House):
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
