"""
The tools that every run has. Tools of a single run come in addition as ``extra_tools`` and are never
registered here.

The registry is filled once, when the program is put together, and read by all runs at the same time.
"""

from __future__ import annotations

from typing import Any

from agent_core.models import ToolDefinition, ToolResult
from agent_core.ports import ToolPort
from agent_core.tools.tool_arguments import problem_with


def definition_of(tool: ToolPort) -> ToolDefinition:
    """The definition of ``tool`` for a model."""
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters=dict(tool.parameters),
        origins=getattr(tool, "definition_origins", ()),
    )


async def run_tool(tool: ToolPort, arguments: dict[str, Any], *, tool_call_id: str = "") -> ToolResult:
    """Run ``tool`` if the arguments fit, else return the problem; its exceptions pass through."""
    problem = problem_with(arguments, tool.parameters)
    if problem is not None:
        result = ToolResult(content=f"The arguments of {tool.name} do not fit: {problem}", is_error=True)
    else:
        result = await tool.execute(**arguments)
    return result.model_copy(update={"tool_call_id": tool_call_id})


class ToolRegistry:
    """Tools by name, in the order of their registration."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolPort] = {}
        self._definitions: list[ToolDefinition] = []

    def register(self, tool: ToolPort) -> None:
        """Add a tool. Raises `ValueError`: there is one of that name already."""
        if tool.name in self._tools:
            raise ValueError(f"there already is a tool named {tool.name!r}")
        self._tools[tool.name] = tool
        self._definitions.append(definition_of(tool))

    def get(self, name: str) -> ToolPort | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    def get_definitions(self) -> list[ToolDefinition]:
        """The definitions of all tools for a model."""
        return list(self._definitions)

    async def execute(self, name: str, /, *, tool_call_id: str = "", **arguments: Any) -> ToolResult:
        """Run the tool with that name; see `run_tool`. The model learns that a name does not exist."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(
                content=f"There is no tool named {name[:80]!r}. Tools are: {known}.",
                is_error=True,
                tool_call_id=tool_call_id,
            )
        return await run_tool(tool, arguments, tool_call_id=tool_call_id)
