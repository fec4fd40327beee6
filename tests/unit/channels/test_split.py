"""Long answers in parts: nothing lost, nothing too long, no code fence left open."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.split import split_markdown


def fences_are_closed(part: str) -> bool:
    """By CommonMark's rule for backtick fences at the margin."""
    marker = None
    for line in part.split("\n"):
        found = re.match(r"^ {0,3}(`{3,}|~{3,})(.*)$", line)
        if marker is None:
            if found and not (found[1][0] == "`" and "`" in found[2]):
                marker = found[1]
        elif re.match(rf"^ {{0,3}}{marker[0]}{{{len(marker)},}}\s*$", line):
            marker = None
    return marker is None


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


LONG = (
    "\n\n".join(f"Paragraph {n} with some words. And another sentence, quite long." for n in range(40))
    + "\n\n```python\n"
    + "\n".join(f"line_{n} = {n}  # comment" for n in range(200))
    + "\n```\n\n| a | b |\n|---|---|\n"
    + "\n".join(f"| row{n} | value{n} |" for n in range(200))
    + "\n\nThe end."
)


@pytest.mark.parametrize("limit", [64, 200, 1000, 5000])
def test_parts_are_bounded_and_complete(limit):
    """Every part is within the limit, no word is missing, the order stays."""
    parts = split_markdown(LONG, limit)

    assert all(0 < len(part.encode()) <= limit for part in parts)
    remaining = iter(words(" ".join(parts)))
    assert all(any(word == other for other in remaining) for word in words(LONG))


@pytest.mark.parametrize("limit", [64, 200, 1000, 5000])
def test_no_part_leaves_a_fence_open(limit):
    """Code that does not fit is closed at the end of a part and opened again, with its language."""
    parts = split_markdown(LONG, limit)

    assert all(fences_are_closed(part) for part in parts)
    assert all("```python" in part for part in parts if "line_" in part)


def test_the_check_sees_a_cut_fence():
    """Cutting at every n-th byte is caught by the same check."""
    naive = [LONG[start : start + 1000] for start in range(0, len(LONG), 1000)]

    assert not all(fences_are_closed(part) for part in naive)


def test_a_fence_that_fits_is_not_cut():
    """A code block smaller than the limit is in one part, whatever is around it."""
    code = "```\n" + "\n".join(f"x{n}" for n in range(20)) + "\n```"

    parts = split_markdown("a " * 100 + "\n\n" + code + "\n\n" + "b " * 100, 250)

    assert any(code in part for part in parts)


def test_a_long_table_repeats_its_head():
    """Each part of a table is a table."""
    parts = split_markdown(LONG, 1000)

    assert all("| a | b |\n|---|---|" in part for part in parts if "| row" in part)


def test_small_texts_stay():
    """A text that fits is unchanged; a blank one is nothing."""
    assert split_markdown("  hi\n\n\nthere ", 64) == ["  hi\n\n\nthere "]
    assert split_markdown(" \n\t\n", 64) == []


def test_characters_are_not_cut():
    """A line without blanks is cut between characters, never inside one."""
    parts = split_markdown("ä€😀" * 100, 64)

    assert "".join(parts) == "ä€😀" * 100


def test_a_limit_without_room_is_refused():
    """There is no sensible part of ten bytes."""
    with pytest.raises(ValueError, match="64"):
        split_markdown("x", 10)


@given(
    st.text(alphabet=st.sampled_from("ab `~|-\n.😀"), max_size=600),
    st.integers(min_value=64, max_value=300),
)
def test_any_text(source, limit):
    """Whatever is written: bounded parts, closed fences, every letter there and in order."""
    parts = split_markdown(source, limit)

    assert all(part.strip() and len(part.encode()) <= limit for part in parts)
    if len(parts) > 1:
        assert all(fences_are_closed(part) for part in parts)
    remaining = iter("".join(parts))
    assert all(any(char == other for other in remaining) for char in re.findall(r"[ab😀.]", source))
