"""
What a model can do, one file per family of tools, and the registry of those that every run has.

A tool that belongs to one session (`MemoryWriteTool`) is made for each run and passed beside the registry.
"""

from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.registry import ToolRegistry, definition_of, run_tool

__all__ = ["MemoryWriteTool", "ReadSkillTool", "ToolRegistry", "definition_of", "run_tool"]
