"""The published format of SKILL.md, compared with its reference validator (agentskills.io, ``skills-ref``)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skills_ref import validate

from agent_core.errors import SkillInvalid
from agent_core.skills.skill_document import parse_skill
from tests.rows import rows


def ours(text: str, folder: str) -> list[str]:
    """What is wrong with a SKILL.md by our own check."""
    try:
        return list(parse_skill(text.encode(), folder).departures)
    except SkillInvalid as error:
        return [str(error)]


def theirs(text: str, folder: str) -> list[str]:
    """The same by the reference validator."""
    with tempfile.TemporaryDirectory() as top:
        path = Path(top, folder, "SKILL.md")
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        return validate(path.parent)


def head(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "", "Boil water.", ""])


TEA, HOW = "name: tea", "description: How to make tea."
GOOD = {
    "least": head(TEA, HOW),
    "all fields": head(
        TEA,
        HOW,
        "license: Apache-2.0",
        "compatibility: Requires git, docker, jq, and access to the internet",
        "metadata:",
        "  author: example-org",
        '  version: "1.0"',
        "allowed-tools: Bash(git:*) Bash(jq:*) Read",
    ),
    "a version that is a number": head(TEA, HOW, "metadata:", "  version: 1.10"),
    "a folded description": head(TEA, "description: >-", "  How to make tea.", "  Use it at five."),
    "longest description": head(TEA, f"description: {'x' * 1024}"),
    "longest compatibility": head(TEA, HOW, f"compatibility: {'x' * 500}"),
}
NAMES = ["tea", "7", "pdf-processing", "a", "t" * 64, "tee-für-zwei", "чай", "no", "0x10", "2026-01-01"]
BAD = {
    "no name": head(HOW),
    "no description": head(TEA),
    "blank description": head(TEA, 'description: "  "'),
    "long description": head(TEA, f"description: {'x' * 1025}"),
    "capital": head("name: Tea", HOW),
    "underscore": head("name: te_a", HOW),
    "two hyphens": head("name: te--a", HOW),
    "hyphen before": head("name: -tea", HOW),
    "hyphen behind": head("name: tea-", HOW),
    "blank in the name": head("name: te a", HOW),
    "long name": head(f"name: {'t' * 65}", HOW),
    "another name": head("name: coffee", HOW),
    "long compatibility": head(TEA, HOW, f"compatibility: {'x' * 501}"),
    "unknown field": head(TEA, HOW, "version: 1.0"),
    "our own field": head(TEA, HOW, "always: true"),
    "no front matter": "Boil water.",
    "not closed": "---\nname: tea\n",
    "a list": head("- tea"),
}


@rows("text", GOOD.values(), ids=GOOD.keys())
def test_what_the_reference_takes_is_in_the_format(text: str) -> None:
    """Nothing is said of a file that follows the rules."""
    assert (ours(text, "tea"), theirs(text, "tea")) == ([], [])


@rows("name", NAMES)
def test_names_are_those_of_the_reference(name: str) -> None:
    """Letters of any script and digits; what YAML would read as a number or a date is its text."""
    text = head(f"name: {name}", HOW)
    assert (ours(text, name), theirs(text, name)) == ([], [])
    assert parse_skill(text.encode()).name == name


@rows("text", BAD.values(), ids=BAD.keys())
def test_what_the_reference_refuses_is_named(text: str) -> None:
    """The control: each of the rules is looked at."""
    assert ours(text, "tea") and theirs(text, "tea")


@settings(max_examples=150, deadline=None)
@given(
    name=st.text(alphabet="abzAZ09-_é·ß １\u0301", min_size=1, max_size=6),
    long=st.integers(1020, 1030),
    fits=st.integers(495, 505),
    extra=st.sampled_from(["", "license: MIT", "version: 2", "allowed-tools: Read Bash(git:*)"]),
)
def test_any_front_matter_is_judged_alike(name: str, long: int, fits: int, extra: str) -> None:
    """Whatever the name and the lengths are: both take the file, or both refuse it."""
    lines = [f"name: '{name}'", f"description: {'x' * long}", f"compatibility: {'y' * fits}", extra]
    text = head(*filter(None, lines))
    assert bool(ours(text, "tea")) == bool(theirs(text, "tea"))
    folder = name.strip() or "tea"
    assert bool(ours(text, folder)) == bool(theirs(text, folder)), (ours(text, folder), theirs(text, folder))


def test_what_only_the_text_of_the_format_says_is_looked_at() -> None:
    """The reference looks at neither: metadata are texts, and so is the licence; a list of tools is fine."""
    assert ours(head(TEA, HOW, "metadata:", "  a: {b: c}"), "tea") == ["metadata: names with a text each"]
    assert ours(head(TEA, HOW, "license: [MIT]"), "tea") == ["license: a text"]
    assert ours(head(TEA, HOW, "allowed-tools:", "  - {a: b}"), "tea")
    listed = parse_skill(head(TEA, HOW, "allowed-tools:", "  - Bash(git:*)", "  - Read").encode(), "tea")
    assert (listed.allowed_tools, listed.departures) == (("Bash(git:*)", "Read"), ())


def test_a_bomb_of_names_is_not_unfolded() -> None:
    """Names for lists of lists cost nothing: a value is looked at, not printed."""
    bomb = "\n".join(
        f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefghijklmn", "bcdefghijklmno", strict=True)
    )
    text = f"---\n{TEA}\n{HOW}\na: &a [x]\n{bomb}\nmetadata:\n  all: *o\nallowed-tools: *o\n---\n"
    assert "metadata: names with a text each" in ours(text, "tea")


def test_a_skill_may_have_256_kib() -> None:
    """So much and no more."""
    room = 256 * 1024 - len(head(TEA, HOW).encode())
    assert parse_skill((head(TEA, HOW) + "x" * room).encode()).name == "tea"
    with pytest.raises(SkillInvalid):
        parse_skill((head(TEA, HOW) + "x" * (room + 1)).encode())


def test_prose_with_colons_needs_no_quotes():
    """Half of what people publish is written so; other programs skip it in silence, so it is said."""
    prose = 'Run any "task": the way I do it 🙂. Triggers on: /x'
    found = parse_skill(f"---\nname: run\ndescription: {prose}\nallowed-tools: Read\n---\nbody".encode())
    assert (found.description, found.allowed_tools) == (prose, ("Read",))
    assert [each for each in found.departures if "quotes" in each]
    quoted = parse_skill(b"---\nname: run\ndescription: 'a: b'\n---\nbody")
    assert (quoted.description, quoted.departures) == ("a: b", ())
    with pytest.raises(SkillInvalid, match="not YAML"):
        parse_skill(b"---\nname: run: on\ndescription: 'a\n---\nbody")
