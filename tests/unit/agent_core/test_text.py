"""Small helpers for texts."""

from __future__ import annotations

import pytest

from agent_core.text import excerpt, word_count

FILLER = "we talked about this and that for an hour or two, "


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("our cat is called Minka", "What is the name of the cat?"),
        ("unsere Katzen heißen Minka und Luna", "Katze Minka"),
        ("кошку зовут Минка", "кошка Минка"),
        ("うちの猫の名前はミンカです", "猫の名前は何ですか"),
    ],
)
def test_an_excerpt_has_the_words_of_the_query(said: str, query: str) -> None:
    """Wherever they stand, in one line that is not longer than it may be; the beginning where there are none."""
    for before in (0, 2, 40):
        text = FILLER * before + said + "\n\n" + FILLER * 40
        shown = excerpt(text, query, 300)
        assert said in shown
        assert len(shown) <= 300
        assert "\n" not in shown
        assert shown.startswith("… ") == (before == 40)


@pytest.mark.parametrize("query", ["", "?!", "unheard", "x" * 1_000_000, "( [ \\ \x00" * 1000])
def test_an_excerpt_without_any_word_is_the_beginning(query: str) -> None:
    """Nothing in a query means anything."""
    assert excerpt("short", query, 300) == "short"
    assert excerpt(FILLER * 40, query, 50).startswith(FILLER[:40])
    assert len(excerpt("z" * 1_000_000, query, 50)) <= 50


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("one two – three", 3),
        ("猫の名前はミンカです", 5),
        ("我叫Anna，住在柏林。", 4),
        ("แมวชื่อมิงกา", 6),
        ("고양이 이름은 민카", 3),
        ("اسم القطة مينكا", 3),
        ("はい", 1),
    ],
)
def test_words_are_counted_in_every_script(text: str, count: int) -> None:
    """Where nobody writes blanks between words two characters count as one."""
    assert word_count(text) == count
