"""A few thousand bad inputs for every parser of mail, the same ones each time; `make fuzz` throws more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import SEEDS, TARGETS

pytestmark = pytest.mark.slow

KEPT = Path(__file__).parents[1] / "data" / "fuzz"
ROUNDS = {"mail": 400, "signatures": 400}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_upsets_a_parser(name: str) -> None:
    """Seeds, and what chance makes of them: read or refused, with every promise kept."""
    for seed in SEEDS[name]:
        TARGETS[name](seed)
    for number in range(ROUNDS.get(name, 800)):
        data = mutated(SEEDS[name], number)
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name}, input {number}: {data[:300]!r}") from error


@pytest.mark.parametrize("name", TARGETS)
@given(draw=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_else_does(name: str, draw: st.DataObject) -> None:
    """Pieces of the seeds and of anything, in any order: what shrinks to a small example when it fails."""
    seed = st.sampled_from(SEEDS[name])
    piece = st.one_of(
        st.binary(max_size=60),
        st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.tuples(seed, st.integers(0, 2_000), st.integers(0, 400)).map(
            lambda cut: cut[0][cut[1] :][: cut[2]]
        ),
        seed,
    )
    TARGETS[name](b"".join(draw.draw(st.lists(piece, max_size=8))))


@pytest.mark.parametrize("path", sorted(KEPT.glob("*")), ids=lambda path: path.name)
def test_what_was_found_once_stays_mended(path: Path) -> None:
    """Files are named after their target: ``mail-1``, ``imap-2``."""
    TARGETS[path.name.partition("-")[0]](path.read_bytes())


def test_a_parser_that_can_be_upset_is_found() -> None:
    """The control: a naive reader of the same field does not live through it."""
    seeds = SEEDS["auth_results"]
    with pytest.raises((IndexError, ValueError, UnicodeDecodeError)):
        for number in range(800):
            text = mutated(seeds, number).decode()
            dict(part.split("=", 1) for part in text.split(";")[1:])
