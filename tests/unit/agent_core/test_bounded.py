"""What is remembered for a while has a bound, and what was set last stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_core.bounded import Bounded


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_the_newest_keys_stay(keys: list[int], most: int) -> None:
    found = Bounded[int, int](most)
    for number, key in enumerate(keys):
        found[key] = number
    newest = list(dict.fromkeys(reversed(keys)))[:most]
    assert list(found) == newest[::-1]
    assert all(keys[number] == key for key, number in found.items())


def test_the_control_of_a_mapping_without_a_bound() -> None:
    assert len(dict.fromkeys(range(9))) > 5
