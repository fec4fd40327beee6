"""The reference pages are what would be made of the code now."""

from __future__ import annotations

import ast

import pytest

from tests.reference_pages import FOLDER, PAGES, events_in


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_that_of_the_code(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run python -m tests.reference_pages"


def test_an_event_is_found_with_its_levels_and_fields() -> None:
    """The control: also behind a condition; other calls are none."""
    source = (
        "_log.info('a.b', of=1)\n"
        "log.warning('a.b' if x else 'a.c', why=2, exc_info=error)\n"
        "parser.error('no event here')\n"
    )
    assert events_in([ast.parse(source)]) == {
        "a.b": ({"info", "warning"}, {"of", "why"}),
        "a.c": ({"warning"}, {"why"}),
    }
