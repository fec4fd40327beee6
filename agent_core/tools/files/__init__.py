"""
Tools that work on files: the workspace, and further folders that the owner names.

``tools.py`` is what a model sees, and all that is imported before one of them is used. Below it: ``roots.py``
(where, and what is out of reach), ``space.py`` (reading and changing, exactly once), ``history.py`` (earlier
versions), ``reading.py`` (lines and text), ``search.py`` with ``search_child.py`` (a process that searches).
"""

from agent_core.tools.files.tools import file_tools

__all__ = ["file_tools"]
