"""
Two levels of memory: a document that lasts over all sessions of a scope, and a summary of each session.

``manager`` puts both into prompts and keeps the history; ``scopes`` decides whose document a session has.
"""

from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER, scope_for

__all__ = ["OWNER", "MemoryManager", "scope_for"]
