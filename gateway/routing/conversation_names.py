"""Finds people and rooms by the names that they have. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def addresses_for(wanted: str, known: Mapping[str, str]) -> list[str]:
    """
    Return the addresses in ``known`` that are meant by ``wanted``: the address itself, else all with this
    name, else all with these words in their names. More than one: it is not certain who is meant.
    """
    said = wanted.strip().casefold()
    words = set(said.split())
    exact = [each for each in known if each.casefold() == said]
    same = [each for each, name in known.items() if said and name.strip().casefold() == said]
    part = [each for each, name in known.items() if words and words <= set(name.casefold().split())]
    return exact or same or part
