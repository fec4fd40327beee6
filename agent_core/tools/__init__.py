"""
What a model can do, one file per family of tools, and the registry of those that every run has.

A tool that belongs to one session (`MemoryWriteTool`, `SearchHistoryTool`) is made for each run and passed
beside the registry.
"""

from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.registry import ToolRegistry, definition_of, run_tool
from agent_core.tools.search_history import SearchHistoryTool

__all__ = [
    "MemoryWriteTool",
    "ReadSkillTool",
    "SearchHistoryTool",
    "ToolRegistry",
    "definition_of",
    "run_tool",
]
