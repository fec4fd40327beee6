"""A small run of the recall benchmark against floors well below what is measured."""

from __future__ import annotations

from tests.recall.__main__ import PROMPT, measure, percent

FLOORS = {"as asked, near": 88, "key words, near": 78, "5-8 words": 85}


async def test_what_was_said_is_among_the_five_best() -> None:
    """In five languages; a search that wants every word stays below each floor, and plain ranking too."""
    shares = await measure([0], sittings=30)
    for form, floor in FLOORS.items():
        assert percent(shares["squidbot", form]) >= floor, form
        assert percent(shares["FTS5, all words", form]) < floor, form
        assert percent(shares["FTS5, OR", form]) < percent(shares["squidbot", form]), form
    assert percent(shares[PROMPT, "as asked, near"]) >= 70
