"""The settings of single people (``people``), and what they mean for `gateway.routing.household`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from agent_core.language import check_code
from agent_core.settings_section import SettingsSection
from gateway.routing.access import kinds_of, normalise
from gateway.routing.household import OTHERS, Household, HouseholdRole, PersonRules
from gateway.settings.source import Problem

PersonName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,120}\*?$|^\*$")]


class PersonSettings(SettingsSection):
    """
    One person beside the owner. Nobody is let in by it: that is what ``allow_from`` of the channels and
    ``!allow`` are for.
    """

    addresses: tuple[str, ...] = ()
    """Their addresses on all channels. They have one memory; the first address names it."""
    role: Literal["owner", "adult", "guest"] = "adult"
    """
    ``guest``: talks, has a memory and reminders, and uses no other tools. ``owner``: a second owner, who may
    decide about the calls of people who are no owners. docs/household.md has the table.
    """
    language: Annotated[str, AfterValidator(check_code)] = ""
    """The language of what squidbot itself says to them. Empty: ``language`` of the home."""
    persona: str = Field(default="", max_length=2000)
    """Name and manner of the assistant in their private conversations, after PERSONA.md."""
    pool: str = ""
    """The pool of models that answers them in private. Empty: the default pool."""
    tools: tuple[ToolName, ...] | None = None
    """
    The tools that their turns may use, such as ``[web_search, schedule, "home__*"]``. Left out: what their
    role may. A tool that is not offered to them anyway is not added.
    """
    share: float | None = Field(default=None, ge=0, le=1)
    """
    Up to which part of the day's budget they are served. Left out: ``llm.budget.shares.others``; guests 0.25,
    a second owner 1.
    """

    def rules(self, name: str) -> PersonRules:
        """The rules that this means."""
        usual = PersonRules.default(HouseholdRole(self.role))
        return PersonRules(
            name=name,
            addresses=tuple(dict.fromkeys(map(normalise, self.addresses))),
            role=usual.role,
            tools=usual.tools if self.tools is None else self.tools,
            share=usual.share if self.share is None else self.share,
            language=self.language,
            persona=self.persona.strip(),
            pool=self.pool,
        )


def household_of(people: Mapping[str, PersonSettings], language: str) -> Household:
    """The people of these settings."""
    return Household({name: each.rules(name) for name, each in people.items()}, language)


def people_problems(data: Mapping[str, Any], owner: Collection[str]) -> list[Problem]:
    """Return the problems of the people of a file; ``owner``: the owner's addresses."""
    found: list[Problem] = []
    seen: dict[str, str] = {}
    for name, entry in entries_of(data.get("people")):
        given = entry.get("addresses")
        addresses = [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
        here = ("people", name, "addresses")
        if name == OTHERS and entry.get("role") == "owner":
            found.append(Problem(("people", name, "role"), "not everybody can be an owner"))
        if name == OTHERS and addresses:
            found.append(Problem(here, "others are all who have no entry, so they have no addresses"))
        elif name != OTHERS and not addresses:
            found.append(Problem(here, "is missing: without an address nobody is meant"))
        for number, address in enumerate(addresses):
            normal, said = normalise(address), ""
            if not kinds_of(normal):
                said = f"{address!r} is no address; write it like @bob:example.org or bob@example.org"
            elif normal in owner:
                said = f"{address!r} is one of owner.aliases; the owner has no entry"
            elif seen.setdefault(normal, name) != name:
                said = f"{address!r} is an address of {seen[normal]} already"
            if said:
                found.append(Problem((*here, number), said))
    return found


def entries_of(table: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entries of a table of mappings, as far as they are some."""
    for name, entry in table.items() if isinstance(table, dict) else ():
        if isinstance(entry, dict):
            yield str(name), entry
