"""Operations on memory documents: text, versions, undo, write."""

from __future__ import annotations

from difflib import unified_diff
from typing import Any

from agent_core.errors import MemoryConflict
from agent_core.memory.scopes import OWNER
from agent_core.memory_ports import MemoryPort
from gateway.errors import GatewayError, NotFound
from gateway.operations.arguments import parse_scope, show_scope


class NotCurrent(GatewayError):
    """The document has a newer version than the one that was to be replaced."""

    exit_code = 1


class MemoryOperations:
    """The part of `gateway.operations.service.Operations` that is about memory documents."""

    _memory: MemoryPort

    async def memory_list(self) -> dict[str, Any]:
        """The scopes that have a memory document."""
        return {"scopes": sorted(show_scope(scope) for scope in await self._memory.memory_scopes())}

    async def memory_show(self, scope: str = "owner") -> dict[str, Any]:
        """A memory document."""
        where = parse_scope(scope)
        document = await self._memory.load_global_memory(where)
        if document.version == 0 and where != OWNER:
            raise await self._never_written(scope)
        return {"scope": scope, "version": document.version, "text": document.text}

    async def memory_history(self, scope: str = "owner") -> dict[str, Any]:
        """Every version of a memory document, oldest first."""
        where = parse_scope(scope)
        versions = await self._memory.memory_versions(where)
        if not versions and where != OWNER:
            raise await self._never_written(scope)
        return {
            "scope": scope,
            "versions": [
                {
                    "version": document.version,
                    "written_at": written_at.isoformat(),
                    "session": session,
                    "turn": turn,
                    "text": document.text,
                }
                for document, written_at, session, turn in versions
            ],
        }

    async def memory_diff(
        self, scope: str = "owner", older: int | None = None, newer: int | None = None
    ) -> dict[str, Any]:
        """Return the difference of two versions of a memory document; by default the last change."""
        where = parse_scope(scope)
        texts = {0: ""} | {
            document.version: document.text for document, *_ in await self._memory.memory_versions(where)
        }
        last = (await self._memory.load_global_memory(where)).version
        if last == 0 and where != OWNER:
            raise await self._never_written(scope)
        new = last if newer is None else newer
        old = max(0, new - 1) if older is None else older
        for wanted in (old, new):
            if wanted not in texts:
                known = ", ".join(str(number) for number in sorted(texts))
                raise NotFound(f"there is no version {wanted} of this memory; known: {known}")
        lines = unified_diff(
            texts[old].splitlines(), texts[new].splitlines(), f"version {old}", f"version {new}", lineterm=""
        )
        return {"scope": scope, "older": old, "newer": new, "diff": list(lines)}

    async def memory_undo(self, scope: str = "owner", to: int | None = None) -> dict[str, Any]:
        """
        Restore the version before the current one, or version ``to``, as a new version.

        The text is what was written; nothing is removed from the history of the document.
        """
        where = parse_scope(scope)
        current = await self._memory.load_global_memory(where)
        if current.version == 0:
            raise await self._never_written(scope)
        texts = {0: ""} | {
            document.version: document.text for document, *_ in await self._memory.memory_versions(where)
        }
        wanted = current.version - 1 if to is None else to
        if wanted not in texts:
            known = ", ".join(str(number) for number in sorted(texts))
            raise NotFound(f"there is no version {wanted} of this memory; known: {known}")
        document = await self._memory.save_global_memory(where, texts[wanted], base_version=current.version)
        return {"scope": scope, "version": document.version, "restored": wanted, "text": document.text}

    async def memory_write(
        self, text: str, scope: str = "owner", version: int | None = None
    ) -> dict[str, Any]:
        """
        Replace a memory document, as an edit by hand does; with ``version`` only if that is the current one.

        The text before stays a version.
        """
        where = parse_scope(scope)
        try:
            document = await self._memory.save_global_memory(where, text, base_version=version)
        except MemoryConflict as error:
            raise NotCurrent(
                f"nothing was written: the memory {scope} has changed and is at version "
                f"{error.current_version} now; read it again (squidbot memory show), then write"
            ) from error
        return {"scope": scope, "version": document.version, "text": document.text}

    async def _never_written(self, scope: str) -> NotFound:
        known = ", ".join((await self.memory_list())["scopes"]) or "none yet"
        return NotFound(f"there is no memory {scope}; the memories are: {known}")
