"""Skills as text for people: a list, and one of them as it is shown before it is added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_core.text import one_line
from gateway.operations.render import table
from gateway.system.terminal_text import plain_line, quote

_DESCRIPTION_CHARS = 60
_SHOWN_CHARS = 20_000


def skills(answer: Mapping[str, Any]) -> str:
    """Render ``skills list``."""
    rows = [
        (row["name"], row["from"], _summary(row["description"], row["missing"])) for row in answer["skills"]
    ]
    return "\n".join([table(("NAME", "FROM", "WHAT"), rows), *_problems(answer)])


def skill_reports(answer: Mapping[str, Any]) -> str:
    """Render ``skills check``, and what `skills add` shows first."""
    shown = ["\n".join(_lines(one)) for one in answer["skills"]]
    return "\n\n".join([*shown, *_problems(answer)]) or "you have no skills of your own"


def addition(answer: Mapping[str, Any]) -> str:
    """The answer of `skills add` after the yes."""
    return plain_line(
        f"the skill {answer['name']} is added and used from the next message on; SHA-256 {answer['sha256']}"
    )


def _problems(answer: Mapping[str, Any]) -> list[str]:
    return [plain_line(f"not used: {one}") for one in answer["problems"]]


def _summary(description: str, missing: list[str]) -> str:
    told = one_line(description, _DESCRIPTION_CHARS)
    return f"{told} (lacks {', '.join(missing)})" if missing else told


def _lines(one: Mapping[str, Any]) -> Iterator[str]:
    """Describe a skill; its own words stand behind a mark, so that none looks like ours."""
    new = "sha256" in one
    yield plain_line(f"{one['name']}: {one['description']}")
    facts = {
        "from": one.get("source"),
        "replaces": f"the one from {one['replaces']}" if one.get("replaces") else "",
        "licence": one["license"],
        "needs": one["compatibility"],
        "requires": ", ".join(one["requires"]),
        "wants these tools (they are asked about as always)": ", ".join(one["allowed_tools"]),
        "in every prompt": "yes" if one["always"] else "",
        "names these hosts": ", ".join(one["hosts"]),
        "files": ", ".join(f"{file['path']} ({file['bytes']} bytes)" for file in one["files"]) if new else "",
        "left out": ", ".join(one.get("left_out", ())),
    }
    yield from (plain_line(f"  {what}: {said}") for what, said in facts.items() if said)
    yield from (plain_line(f"  format: {each}") for each in one["departures"])
    for each in one["suspicions"]:
        words = f": {each['words']}" if each["words"] else ""
        yield plain_line(f"  read {each['file']}, line {each['line']}: it {each['why']}{words}")
    if not new:
        return
    yield ""
    text, cut = ("\n".join(one["changes"]), "the changes") if one["changes"] else (one["text"], "SKILL.md")
    yield quote(text[:_SHOWN_CHARS])
    if len(text) > _SHOWN_CHARS:
        yield f"(this is the beginning of {cut}: read the rest in the source)"
    yield ""
    yield "What is named above is a hint; that nothing is named is no guarantee. After your yes the assistant"
    yield "follows this text as if you had written it."
    yield f"SHA-256 {one['sha256']}"
