"""The tools that change files: ``write_file``, ``edit_file``, ``move_file``, ``delete_file``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.to_thread

from agent_core.errors import ToolFailed, ToolRetry
from agent_core.models import ToolResult, tool_parameters
from agent_core.provenance import Origins, join_origins
from agent_core.tools.effects import Effect, Review
from agent_core.tools.files.file_run import FileRun, FileTool

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import FileState
    from agent_core.tools.files.roots import RootedPath


class ReceivedFile(NamedTuple):
    """An attachment to be saved."""

    name: str
    content: bytes
    origins: Origins


Received = Callable[[str, int], Awaitable[ReceivedFile]]
"""Reads an attachment by its id, of at most so many bytes. Raises `ToolError`."""


class _Changing(FileTool, ABC):
    """One that changes the file ``path``."""

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        """Lasting, where the prompt is built of the file."""
        return self._run.effect(arguments.get("path"))

    def guards(self, arguments: Mapping[str, Any]) -> bool:
        """Return True for a lasting instruction: a person sees it first, where one can be asked."""
        return self._run.has_person and self.effect_of(arguments) is Effect.PERSIST

    def targets(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        return (str(arguments.get("path")),)

    def makes_new(self, arguments: Mapping[str, Any]) -> bool:
        return self._run.makes_new(arguments.get("path"))

    async def review(self, **arguments: Any) -> Review:
        return await anyio.to_thread.run_sync(partial(self._review, **arguments))

    def _review(self, **arguments: Any) -> Review:
        from agent_core.tools.files.file_reading import reviewed_change  # noqa: PLC0415
        from agent_core.tools.files.journaled_files import check_expected_content, state_of  # noqa: PLC0415

        # Nobody is asked about what would be refused after the yes.
        place = self._run.place(str(arguments["path"]), write=True)
        found = self._run.files.read_state(place)
        new = self._new(place, found, **arguments)
        check_expected_content(place, found, self._expected(place, found))
        before = found.content if found else None
        remarks = self._run.files.remarks_on(place, new)
        text = "\n".join([*remarks, reviewed_change(before, new, place.label)])
        return Review(text, state_of(found), changes_nothing=before == new)

    def _expected(self, place: RootedPath, found: FileState | None) -> str | None:
        from agent_core.tools.files.journaled_files import ANYTHING  # noqa: PLC0415

        return self._run.knows(place) or ANYTHING

    @abstractmethod
    def _new(self, place: RootedPath, found: FileState | None, **arguments: Any) -> bytes | None:
        """Return the new content of the file; None deletes it."""


class WriteFileTool(_Changing):
    """The tool ``write_file``; ``received`` reads attachments of the conversation."""

    name = "write_file"
    description = "Write a file whole: content, or an attachment (id). Read one that exists first."
    parameters = tool_parameters("path", path="string", content="string", attachment="string")

    def __init__(self, run: FileRun, received: Received | None = None) -> None:
        super().__init__(run)
        self._received = received

    async def execute(self, **arguments: Any) -> ToolResult:
        """Write ``content``, or the file ``attachment``, to ``path``."""
        return await anyio.to_thread.run_sync(partial(self._write, arguments, await self._file(arguments)))

    async def review(self, **arguments: Any) -> Review:
        """Show what would be written."""
        file = await self._file(arguments)
        return await anyio.to_thread.run_sync(partial(self._review, **arguments, file=file))

    async def _file(self, arguments: Mapping[str, Any]) -> ReceivedFile | None:
        from agent_core.tools.files.journaled_files import MAX_FILE_BYTES  # noqa: PLC0415

        wanted = str(arguments.get("attachment") or "").strip()
        given = arguments.get("content")
        if (wanted and given) or (not wanted and given is None):
            raise ToolRetry("Give either `content` or `attachment`.")
        if not wanted:
            return None
        if self._received is None:
            raise ToolFailed("There are no attachments here.")
        return await self._received(wanted, MAX_FILE_BYTES)

    def _review(self, *, file: ReceivedFile | None = None, **arguments: Any) -> Review:
        from agent_core.tools.files.file_reading import kind_of  # noqa: PLC0415

        if file is None or not kind_of(file.content[:8192]):
            return super()._review(**arguments, file=file)
        seen = super()._review(**arguments, file=file._replace(content=b""))
        became = "a new file" if self.makes_new(arguments) else "replaced"
        shown = f"{arguments['path']}, {became}: the attachment {file.name}, {len(file.content):,} bytes"
        return Review(shown, seen.state)

    def _write(self, arguments: dict[str, Any], file: ReceivedFile | None) -> ToolResult:
        by = self._run.by(self.name, arguments)
        place = self._run.place(arguments["path"], write=True)
        new = self._new(place, None, **arguments, file=file)
        self._run.files.remarks_on(place, new)
        done = self._run.files.replace(
            place,
            lambda _: new,
            kind="write",
            by=by,
            expected=self._run.knows(place),
            # What a file holds is its sender's, whoever has said yes to keeping it.
            taken_over=None if file is None else join_origins(by.origins, file.origins),
        )
        return self._done(done, place, f"{place.label!r} is written, {len(new):,} bytes")

    def _new(self, place: RootedPath, found: FileState | None, **arguments: Any) -> bytes:
        file: ReceivedFile | None = arguments.get("file")
        return _encoded(arguments["content"]) if file is None else file.content

    def _expected(self, place: RootedPath, found: FileState | None) -> str | None:
        return self._run.knows(place) if found else None


class EditFileTool(_Changing):
    """The tool ``edit_file``."""

    name = "edit_file"
    deferred = True
    description = "Replace exact text in a file; old must occur once, unless all is true."
    parameters = tool_parameters(
        "path", "old", "new", path="string", old="string", new="string", all="boolean"
    )

    async def execute(self, **arguments: Any) -> ToolResult:
        """Replace ``old`` by ``new`` in ``path``."""
        return await anyio.to_thread.run_sync(partial(self._edit, arguments))

    def _edit(self, arguments: dict[str, Any]) -> ToolResult:
        by = self._run.by(self.name, arguments)
        place = self._run.place(arguments["path"], write=True)
        done = self._run.files.replace(
            place,
            lambda found: self._new(place, found, **arguments),
            kind="edit",
            by=by,
            expected=self._expected(place, None),
        )
        return self._done(done, place, f"{place.label!r} is changed")

    def _new(self, place: RootedPath, found: FileState | None, **arguments: Any) -> bytes:
        from agent_core.tools.files.file_reading import kind_of, replace_text  # noqa: PLC0415
        from agent_core.tools.files.journaled_files import MAX_WRITE_BYTES  # noqa: PLC0415

        if found is None:
            raise ToolRetry(f"There is no {place.label!r}; write_file creates it.")
        if kind := kind_of(found.content[:8192]):
            raise ToolFailed(f"{place.label!r} is {kind}; only text can be edited.")
        if not arguments["old"]:
            raise ToolRetry("`old` is empty; copy the text to replace.")
        if len(found.content) > MAX_WRITE_BYTES:
            raise ToolFailed(f"{place.label!r} is larger than {MAX_WRITE_BYTES:,} bytes.")
        _encoded(arguments["new"])
        _encoded(arguments["old"])
        everywhere = bool(arguments.get("all"))
        new = replace_text(
            found.content, arguments["old"], arguments["new"], everywhere=everywhere, shown=place.label
        )
        if len(new) > MAX_WRITE_BYTES:
            raise ToolFailed(f"{place.label!r} would become larger than {MAX_WRITE_BYTES:,} bytes.")
        self._run.files.remarks_on(place, new)
        return new


class MoveFileTool(FileTool):
    """The tool ``move_file``."""

    name = "move_file"
    deferred = True
    description = "Move or rename a file; the new name must be free."
    parameters = tool_parameters("path", "to", path="string", to="string")

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        """Return the lasting effect if either name is a prompt file."""
        return self._run.effect(arguments.get("path"), arguments.get("to"))

    def targets(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        """Both names."""
        return (str(arguments.get("path")), str(arguments.get("to")))

    async def review(self, **arguments: Any) -> Review:
        """Show both paths, and the text if the move makes it part of the prompt."""
        return await anyio.to_thread.run_sync(partial(self._review, **arguments))

    def _review(self, **arguments: Any) -> Review:
        from agent_core.tools.files.file_reading import reviewed_change  # noqa: PLC0415
        from agent_core.tools.files.journaled_files import state_of  # noqa: PLC0415

        place = self._run.place(str(arguments["path"]), write=True)
        target = self._run.place(str(arguments["to"]), write=True)
        found = self._run.files.read_state(place)
        if found is None:
            raise ToolRetry(f"There is no {place.label!r}; list_files shows what there is.")
        if self._run.files.read_state(target) is not None:
            raise ToolRetry(f"{target.label!r} already exists; choose another name.")
        text = f"{place.label} becomes {target.label}"
        if target.prompt:
            text += f"\n{reviewed_change(None, found.content, target.label)}"
        return Review(text, state_of(found))

    async def execute(self, **arguments: Any) -> ToolResult:
        """Move ``path`` to ``to``."""
        return await anyio.to_thread.run_sync(partial(self._move, arguments))

    def _move(self, arguments: dict[str, Any]) -> ToolResult:
        from agent_core.tools.files.journaled_files import ANYTHING  # noqa: PLC0415

        by = self._run.by(self.name, arguments)
        place = self._run.place(arguments["path"], write=True)
        target = self._run.place(arguments["to"], write=True)
        done = self._run.files.move(place, target, by=by, expected=self._run.knows(place) or ANYTHING)
        self._run.saw(place, None)
        return self._done(done, target, f"{place.label!r} is now {target.label!r}")


class DeleteFileTool(_Changing):
    """The tool ``delete_file``."""

    name = "delete_file"
    deferred = True
    description = "Delete a file; an earlier version is kept for a while."
    parameters = tool_parameters("path", path="string")

    async def execute(self, **arguments: Any) -> ToolResult:
        """Delete ``path``."""
        return await anyio.to_thread.run_sync(partial(self._delete, arguments))

    def _delete(self, arguments: dict[str, Any]) -> ToolResult:
        by = self._run.by(self.name, arguments)
        place = self._run.place(arguments["path"], write=True)
        done = self._run.files.replace(
            place,
            lambda found: self._new(place, found),
            kind="delete",
            by=by,
            expected=self._expected(place, None),
        )
        return self._done(done, place, f"{place.label!r} is deleted")

    def _new(self, place: RootedPath, found: FileState | None, **arguments: Any) -> None:
        if found is None:
            raise ToolRetry(f"There is no {place.label!r}; list_files shows what there is.")


def _encoded(text: str) -> bytes:
    from agent_core.tools.files.journaled_files import MAX_WRITE_BYTES  # noqa: PLC0415

    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise ToolRetry("The text contains half a character (a lone surrogate).") from error
    if len(content) > MAX_WRITE_BYTES:
        raise ToolRetry(f"The text has {len(content):,} bytes; write at most {MAX_WRITE_BYTES:,} at once.")
    return content
