"""Ten servers with thirty tools each: stand-ins with definitions as long as those of real servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.models import ToolResult
from agent_core.tools.effects import Effect

_SERVERS = ("github", "files", "mail", "calendar", "bank", "music", "maps", "house", "shop", "notes")
_VERBS = ("add", "list", "get", "update", "remove", "search")
_THINGS = ("item", "folder", "label", "member", "report")
THE_217TH = "house__list_folder"


class ServerTool:
    """A deferred tool as a server would have it: some 500 bytes of definition."""

    deferred = True
    effect = Effect.PERSIST

    def __init__(self, server: str, verb: str, thing: str) -> None:
        self.name = f"{server}__{verb}_{thing}"
        self.description = f"{verb.title()} a {thing} in {server}. " + "More about how it is used. " * 8
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {"who": {"type": "string", "description": f"The {thing}"}},
            "required": ["who"],
        }
        self.runs: list[str] = []

    async def execute(self, **arguments: Any) -> ToolResult:
        self.runs.append(arguments["who"])
        return ToolResult(content=f"{self.name}: {arguments['who']} is there")


def three_hundred() -> list[ServerTool]:
    """All of them; `THE_217TH` is number 217."""
    return [ServerTool(server, verb, thing) for server in _SERVERS for verb in _VERBS for thing in _THINGS]
