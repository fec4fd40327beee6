"""
The tool ``schedule``: a model plans reminders and later questions to itself, for the person who asks. The
caller decides whose jobs they are and in which conversation they answer, as for ``memory_write``: no argument
of a model chooses another room, and ``whom`` only says who is notified in this one. The jobs themselves are
behind `JobsPort`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from agent_core.models import ToolResult, tool_parameters
from agent_core.provenance import Origins
from agent_core.tools.effects import Effect, Review, Wording

_MAX_TEXT = 4000
_REPEATS = re.compile(
    r"\b(?:every|each|(?:hour|dai|week|month|quarter|year|annual)ly|jede[nrs]?|alle|quartalsweise"
    r"|(?:stünd|t(?:ä|ae)g|wöchent|monat|viertelj(?:ä|ae)hr|halbj(?:ä|ae)hr|j(?:ä|ae)hr)lich"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun|week|work)days|work(?:ing)? days|week-?ends"
    r"|(?:mon|diens|donners|frei|sams|sonn|werk|wochen)tags|mittwochs|sonnabends)\b",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[,;&]| and ")


class JobsPort(Protocol):
    """
    One person's jobs, seen from one conversation.

    Methods return a text for the model, and raise `ToolError` with one.
    """

    async def add(self, text: str, *, ask: bool, when: Mapping[str, Any], whom: str = "") -> tuple[str, str]:
        """Store a job at the model's ``when`` for ``whom`` in a group; return text and id."""
        ...

    def fixed_time(self, when: Mapping[str, Any]) -> str:
        """The time that ``when`` means, with its zone; empty if it counts from now (``in 2 hours``)."""
        ...

    async def list_text(self) -> str:
        """The jobs, one per line."""
        ...

    async def origins(self) -> Origins:
        """The origins of the listed jobs, besides their person."""
        ...

    async def change(self, job_id: str, action: str) -> str:
        """``remove``, ``pause`` or ``resume`` a job."""
        ...


class ScheduleTool:
    """The tool ``schedule`` of one run. Only who is in ``company`` is told that others can be notified."""

    name = "schedule"
    description = (
        "Do something later or repeatedly; add needs at, in_minutes, every_minutes or cron. 'remind' sends "
        "text as is; 'ask' gives it to you as a task and sends your answer. remove, pause, resume need id."
    )
    parameters = tool_parameters(
        "action",
        action={"type": "string", "enum": ["add", "list", "remove", "pause", "resume"]},
        kind={"type": "string", "enum": ["remind", "ask"]},
        text="string",
        whom={"type": "string", "description": "Names or addresses, or 'everybody'; else who asks"},
        at={"type": "string", "description": "'2026-11-22 09:00', 'friday 6pm', 'every day 09:00'"},
        in_minutes="number",
        every_minutes="number",
        cron="string",
        timezone="string",
        id="string",
    )

    def __init__(self, jobs: JobsPort, *, company: bool = True) -> None:
        self._jobs = jobs
        if not company:
            properties = {
                name: told for name, told in self.parameters["properties"].items() if name != "whom"
            }
            self.parameters = {**self.parameters, "properties": properties}

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        """The effect of the call: listing changes nothing."""
        return Effect.PRIVATE_READ if arguments.get("action") == "list" else Effect.PERSIST

    def is_note(self, arguments: Mapping[str, Any]) -> bool:
        """Return True for a reminder, which is sent word for word, with its origins; a task would act."""
        return arguments.get("action") == "add" and arguments.get("kind") != "ask"

    async def wording(self, arguments: Mapping[str, Any]) -> Wording | None:
        """The text and the time of a reminder that comes once, and for whom it is."""
        repeats = any(arguments.get(name) for name in ("every_minutes", "cron", "timezone"))
        at, whom = str(arguments.get("at") or ""), str(arguments.get("whom") or "")
        repeats = repeats or _REPEATS.search(at) is not None
        if arguments.get("action") != "add" or arguments.get("kind") == "ask" or repeats:
            return None
        times = at.split()
        times += [f"{minutes:g}"] if (minutes := arguments.get("in_minutes")) else []
        people = [name.strip() for name in _BETWEEN.split(whom) if name.strip()]
        return Wording([str(arguments.get("text"))], [*times, *people]) if times else None

    async def review(self, **arguments: Any) -> Review | None:
        """The arguments as they are, but only for the time that they mean when they are shown."""
        is_new = arguments.get("action") == "add"
        return Review("", self._jobs.fixed_time(_when(arguments))) if is_new else None

    async def execute(self, **arguments: Any) -> ToolResult:
        """Do what ``action`` says."""
        action = arguments.get("action")
        if action == "list":
            return ToolResult(content=await self._jobs.list_text(), origins=await self._jobs.origins())
        if action == "add":
            text = str(arguments.get("text") or "").strip()
            if not text:
                return ToolResult(content="'text' is missing: what is to be sent or asked?", is_error=True)
            if len(text) > _MAX_TEXT:
                return ToolResult(content=f"'text' is longer than {_MAX_TEXT} characters.", is_error=True)
            ask = arguments.get("kind") == "ask"
            whom = str(arguments.get("whom") or "")
            said, job_id = await self._jobs.add(text, ask=ask, when=_when(arguments), whom=whom)
            return ToolResult(content=said, undo=f"squidbot cron remove {job_id}")
        job_id = str(arguments.get("id") or "").strip()
        if not job_id:
            return ToolResult(content="'id' is missing; action 'list' shows the ids.", is_error=True)
        said = await self._jobs.change(job_id, str(action))
        back = {"pause": "resume", "resume": "pause"}.get(str(action))
        return ToolResult(content=said, undo=f"squidbot cron {back} {job_id.lower()}" if back else "")


def _when(arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = ("at", "in_minutes", "every_minutes", "cron", "timezone")
    return {name: arguments[name] for name in names if arguments.get(name) not in (None, "")}
