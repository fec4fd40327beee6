"""
The file tools: for the workspace, and for further folders that the owner names. ``file_run.py``,
``read_tools.py`` and ``change_tools.py`` are what a model sees, and all that is imported before one of them
is used. Below: ``roots.py`` (where, and what is out of reach), ``journaled_files.py`` (reading and changing,
exactly once), ``change_journal.py`` (changes and earlier versions), ``file_reading.py`` (lines, text),
``file_search.py`` with ``file_search_child.py`` (a process that searches). ``workspace_contents.py``,
``command_origins.py`` and ``command_basis.py`` know whose words stand behind a command
of the shell, and what was approved of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_core.models import Session
from agent_core.ports import ToolPort
from agent_core.provenance import Origins, origins_of_call
from agent_core.tools.files.change_tools import (
    DeleteFileTool,
    EditFileTool,
    MoveFileTool,
    Received,
    WriteFileTool,
)
from agent_core.tools.files.file_run import FileRun
from agent_core.tools.files.read_tools import ListFilesTool, PictureViewer, ReadFileTool, SearchFilesTool

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles

__all__ = ["file_tools"]


def file_tools(
    files: Callable[[], JournaledFiles],
    session: Session,
    *,
    own: bool = True,
    known: dict[str, str] | None = None,
    origins: Callable[[], Origins] = origins_of_call,
    roots: str = "",
    look: PictureViewer | None = None,
    received: Received | None = None,
) -> list[ToolPort]:
    """
    Build the tools of one run.

    Args:
        files: Returns the files; called at the first use.
        own: Only the owner takes part; else the workspace is shared, without prompt files and roots.
        known: Contents read in earlier turns; added to.
        origins: Returns the origins of what the current call stores.
        look: Shows pictures; None: no model sees any.
        received: Reads the conversation's attachments.
    """
    run = FileRun(files, session, own=own, known={} if known is None else known, origins=origins)
    reading: list[ToolPort] = [ReadFileTool(run, roots, look), ListFilesTool(run), SearchFilesTool(run)]
    return [*reading, WriteFileTool(run, received), EditFileTool(run), MoveFileTool(run), DeleteFileTool(run)]
