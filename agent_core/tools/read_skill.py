"""The tool ``read_skill``: a model reads a skill that the index in its prompt lists, and its files."""

from __future__ import annotations

from typing import Any

import anyio.to_thread

from agent_core.errors import SkillInvalid
from agent_core.models import ToolResult, tool_parameters
from agent_core.ports import SkillsPort
from agent_core.tools.effects import Effect


class ReadSkillTool:
    """The tool ``read_skill``. It knows names only, so it opens nothing but skills."""

    name = "read_skill"
    effect = Effect.READ
    description = "Read a skill in <skills>."

    def __init__(self, skills: SkillsPort) -> None:
        self.parameters = tool_parameters("skill", skill="string")
        self._skills = skills

    async def execute(self, **arguments: Any) -> ToolResult:
        """Give the text of ``skill``, or of one of its files: ``tea/references/kinds.md``."""
        try:
            text = await anyio.to_thread.run_sync(self._text, str(arguments.get("skill")))
        except SkillInvalid as exc:
            return ToolResult(content=str(exc), is_error=True)
        return ToolResult(content=text)

    def _text(self, name: str) -> str:
        skill, slash, file = name.partition("/")
        if slash:
            return self._skills.load_skill_file(skill, file)
        text, files = self._skills.load_skill_body(skill), self._skills.list_skill_files(skill)
        if not files:
            return text
        return (
            f"[Files of this skill: {', '.join(files)}. Read one with read_skill as {skill}/{files[0]}; "
            f"a shell command finds them in its folder of ../skills]\n\n{text}"
        )
