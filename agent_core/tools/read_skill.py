"""The tool ``read_skill``: a model reads a skill that the index in its prompt lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from agent_core.errors import SkillInvalid
from agent_core.models import ToolResult
from agent_core.ports import SkillsPort
from agent_core.tools.effects import Effect


class ReadSkillTool:
    """The tool ``read_skill``. It knows names only, so it opens nothing but skills."""

    name = "read_skill"
    effect = Effect.READ
    description = "Read a skill in <skills>."

    def __init__(self, skills: SkillsPort) -> None:
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {"skill": {"type": "string"}},
            "required": ["skill"],
        }
        self._skills = skills

    async def execute(self, **arguments: Any) -> ToolResult:
        """Give the text of ``skill``."""
        try:
            body = await anyio.to_thread.run_sync(self._skills.load_skill_body, str(arguments.get("skill")))
        except SkillInvalid as exc:
            return ToolResult(content=str(exc), is_error=True)
        return ToolResult(content=body)
