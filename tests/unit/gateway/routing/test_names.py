"""People and rooms are found by the names that they have."""

from __future__ import annotations

import pytest

from gateway.routing.conversations import addresses_for

KNOWN = {
    "@bob:hs.test": "Bob Miller",
    "@bob2:hs.test": "bob",
    "@carol:hs.test": "Carol Smith",
    "@carl:hs.test": "Carol Jones",
    "@nobody:hs.test": "",
}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("BOB", ["@bob2:hs.test"]),
        ("miller", ["@bob:hs.test"]),
        ("smith carol", ["@carol:hs.test"]),
        ("Carol", ["@carol:hs.test", "@carl:hs.test"]),
        ("@NOBODY:hs.test", ["@nobody:hs.test"]),
        ("Dora", []),
        ("Car", []),
        ("", []),
        (" ", []),
    ],
)
def test_who_is_called(wanted: str, found: list[str]) -> None:
    """By the whole name before a part of it, in any case; of two with the same name it is not certain."""
    assert addresses_for(wanted, KNOWN) == found
