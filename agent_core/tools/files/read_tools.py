"""The file tools that change nothing: ``read_file``, ``list_files``, ``search_files``."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio.to_thread

from agent_core.errors import ToolFailed, ToolRetry
from agent_core.messages import Attachment
from agent_core.models import ToolResult, tool_parameters
from agent_core.prompt import fence
from agent_core.provenance import Origins, join_origins, untrusted_origin
from agent_core.tools.effects import Effect
from agent_core.tools.files.file_run import FileRun, FileTool
from agent_core.workspace import PROMPT_NAMES, is_of_prompt

if TYPE_CHECKING:
    from agent_core.tools.files.file_reading import LineWindow
    from agent_core.tools.files.file_search import Hits
    from agent_core.tools.files.roots import RootedPath

_SHOWN_CHARS = 14_000
_MAX_LINES = 2000
_MAX_LISTED = 300
_MAX_HITS = 100


@dataclass(frozen=True, slots=True)
class PictureViewer:
    """
    Passes pictures to a model that accepts them, up to ``max_bytes``.

    ``keep`` stores a file; None: not stored, or no picture.
    """

    keep: Callable[[str, bytes], Awaitable[Attachment | None]]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A file that is not made of text; ``content`` only of a picture that may be shown, or a document."""

    place: RootedPath
    told: ToolResult
    content: bytes = b""
    document: str = ""


class ReadFileTool(FileTool):
    """The tool ``read_file``; it carries what the run knows."""

    name = "read_file"
    effect = Effect.PRIVATE_READ
    parameters = tool_parameters("path", path="string", offset="integer", limit="integer")

    def __init__(self, run: FileRun, roots: str = "", look: PictureViewer | None = None) -> None:
        super().__init__(run)
        self._look = look
        more = f" Further folders, by absolute path: {roots}." if roots else ""
        picture = "" if look is None else ", or a picture"
        self.description = (
            f"Read text (numbered lines), a PDF or office document{picture}. "
            f"Paths start in the workspace.{more}"
        )

    def state(self) -> dict[str, Any]:
        """See `FileRun.state`."""
        return self._run.state()

    def restore(self, state: dict[str, Any]) -> None:
        """See `FileRun.restore`."""
        self._run.restore(state)

    async def execute(self, **arguments: Any) -> ToolResult:
        """Show lines of the file ``path``."""
        found = await anyio.to_thread.run_sync(partial(self._read, **arguments))
        if isinstance(found, ToolResult):
            return found
        if found.document:
            return await self._read_document(found, **arguments)
        if self._look is None or not found.content:
            return found.told
        if (kept := await self._look.keep(found.place.parts[-1], found.content)) is None:
            return found.told
        text = f"{found.place.label!r} is a picture, which you are shown."
        return found.told.model_copy(update={"content": text, "pictures": (kept,)})

    async def _read_document(
        self, found: _Unreadable, offset: int | None = None, limit: int | None = None, **_: Any
    ) -> ToolResult:
        """The text of a PDF or office document, which a confined process takes out of it."""
        from agent_core.tools.web.pdf import read_pdf  # noqa: PLC0415

        try:
            read = await read_pdf(found.content, kind=found.document)
        except ValueError as error:
            told = f"{found.place.label!r} cannot be read: {error}."
            return found.told.model_copy(update={"content": told, "is_error": True})
        text = read.text.encode("utf-8", "replace")
        seen = _window(BytesIO(text), offset, limit)
        more = "The document is longer; its end cannot be read here." if read.is_cut else ""
        return found.told.model_copy(update={"content": _shown(seen, more)})

    def _read(
        self, path: str, offset: int | None = None, limit: int | None = None
    ) -> ToolResult | _Unreadable:
        from agent_core.tools.files.file_reading import kind_of  # noqa: PLC0415
        from agent_core.tools.files.journaled_files import MAX_FILE_BYTES  # noqa: PLC0415
        from agent_core.tools.web.pdf import MAX_DOCUMENT_BYTES, document_kind  # noqa: PLC0415

        place = self._run.place(path)
        roots = self._run.files.roots
        if not place.parts:
            raise ToolRetry("That is a folder; use list_files.")
        try:
            with roots.folder(place) as folder:
                handle = roots.open(place, folder)
        except LookupError as error:
            raise ToolRetry(f"There is no {place.label!r}; list_files shows what there is.") from error
        except OSError as error:
            raise ToolFailed(f"{place.label!r} cannot be read: {error.strerror}.") from error
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if kind := kind_of(os.pread(handle, 8192, 0)):
                most = self._look.max_bytes if self._look is not None and "picture" in kind else 0
                is_document = "document" in kind  # PDF, or an archive that may be one
                most = MAX_DOCUMENT_BYTES if is_document else most
                content = file.read(most) if status.st_size <= most else b""
                digest = hashlib.sha256(content).hexdigest() if content else None
                told = ToolResult(
                    content=f"{place.label!r} is {kind} of {status.st_size:,} bytes, not text. It cannot be "
                    "shown here; send_file sends it to the person.",
                    origins=self._run.files.origins_of(place, digest, status.st_mtime),
                )
                return _Unreadable(place, told, content, document_kind(content) if is_document else "")
            seen = _window(file, offset, limit)
        self._run.saw(place, seen.digest or None)
        most_read = f"Only the first {MAX_FILE_BYTES:,} of {status.st_size:,} bytes can be read here."
        return ToolResult(
            content=_shown(seen, "" if seen.digest else most_read),
            origins=self._run.files.origins_of(place, seen.digest or None, status.st_mtime),
        )


def _window(file: BinaryIO, offset: int | None, limit: int | None) -> LineWindow:
    from agent_core.tools.files.file_reading import window  # noqa: PLC0415
    from agent_core.tools.files.journaled_files import MAX_FILE_BYTES  # noqa: PLC0415

    return window(
        file,
        offset=max(1, offset or 1),
        limit=min(max(1, limit or _MAX_LINES), _MAX_LINES),
        max_chars=_SHOWN_CHARS - 2500,
        max_bytes=MAX_FILE_BYTES,
    )


def _shown(seen: LineWindow, more: str) -> str:
    """The lines, with what is said of the rest of them and, in ``more``, of the rest of the file."""
    notes = []
    if seen.first > 1 or seen.following:
        notes.append(f"Lines {seen.first} to {seen.last} of {seen.total}{'' if seen.digest else ' or more'}.")
    if seen.following and seen.following > seen.last:
        notes.append(f"Go on with offset {seen.following}.")
    shown = fence("file_text", seen.text) if seen.text else f"(nothing; the file has {seen.total} lines)"
    return "\n".join([*notes, *filter(None, [more]), shown])


class ListFilesTool(FileTool):
    """The tool ``list_files``."""

    name = "list_files"
    effect = Effect.PRIVATE_READ
    deferred = True
    description = "List a folder of the workspace."
    parameters = tool_parameters(path="string")

    async def execute(self, **arguments: Any) -> ToolResult:
        """Show what the folder ``path`` holds."""
        return await anyio.to_thread.run_sync(partial(self._list, **arguments))

    def _list(self, path: str | None = None) -> ToolResult:
        from agent_core.tools.files.journaled_files import is_leftover  # noqa: PLC0415

        place = self._run.place(path or ".")
        hides = not self._run.own and not place.parts
        roots = self._run.files.roots
        lines = []
        try:
            with roots.inside(place) as folder:
                handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
                try:
                    names = sorted(
                        name
                        for name in os.listdir(handle)  # noqa: PTH208 - of a handle
                        if not is_leftover(name) and not (hides and is_of_prompt(name))
                    )
                    for name in names[:_MAX_LISTED]:
                        try:
                            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        mode = status.st_mode
                        written = time.strftime("%Y-%m-%d %H:%M", time.gmtime(status.st_mtime))
                        what = f"{status.st_size:>10}  {written}"
                        end = "/" if stat.S_ISDIR(mode) else "" if stat.S_ISREG(mode) else "  (not a file)"
                        lines.append(f"{what}  {_shown_name(name)}{end}")
                finally:
                    os.close(handle)
        except LookupError as error:
            raise ToolRetry(f"There is no folder {place.label!r}.") from error
        except OSError as error:
            raise ToolFailed(f"{place.label!r} cannot be listed: {error.strerror}.") from error
        lines = _fitting(lines)
        if len(names) > len(lines):
            lines.append(f"… and {len(names) - len(lines)} more; use search_files with a glob.")
        prefix = "" if place.label == "." else f"{place.label.rstrip('/')}/"
        return ToolResult(
            content=fence("files", "\n".join(lines)) if lines else f"{place.label!r} is empty.",
            origins=self._origins(place, prefix, names[:_MAX_LISTED]),
        )

    def _origins(self, place: RootedPath, prefix: str, names: Sequence[str]) -> Origins:
        """Names are words as well: those that nobody here has given may be anybody's."""
        found = []
        for name in names:
            known = self._run.files.journal.origins_of_name(f"{prefix}{name}")
            if known is None and not self._run.is_prompt(f"{prefix}{name}"):
                known = (untrusted_origin("file", f"{place.label}/"),)
            found.append(known or ())
        return join_origins(*found)


class SearchFilesTool(FileTool):
    """The tool ``search_files``."""

    name = "search_files"
    effect = Effect.PRIVATE_READ
    description = "Find files by glob (**/*.md), newest first, or lines by regex."
    parameters = tool_parameters(pattern="string", glob="string", path="string", ignore_case="boolean")

    async def execute(self, **arguments: Any) -> ToolResult:
        """Search below the folder ``path``."""
        from agent_core.tools.files.file_search import search_below  # noqa: PLC0415

        pattern, glob = arguments.get("pattern") or "", arguments.get("glob") or ""
        if not pattern and not glob:
            raise ToolRetry("Give a pattern, a glob or both.")
        place = self._run.place(arguments.get("path") or ".")
        roots = self._run.files.roots
        try:
            with roots.inside(place) as folder:
                found = await search_below(
                    folder,
                    pattern=pattern,
                    glob=glob,
                    ignore_case=bool(arguments.get("ignore_case")),
                    limit=_MAX_HITS,
                    forbidden=sorted(await anyio.to_thread.run_sync(roots.forbidden, place)),
                    hidden=sorted(PROMPT_NAMES) if not self._run.own and not place.parts else (),
                )
        except LookupError as error:
            raise ToolRetry(f"There is no folder {place.label!r}.") from error
        except OSError as error:
            raise ToolFailed(f"{place.label!r} cannot be searched: {error.strerror}.") from error
        return self._describe_hits(place, found, by_content=bool(pattern))

    def _describe_hits(self, place: RootedPath, found: Hits, *, by_content: bool) -> ToolResult:
        prefix = "" if place.label == "." else f"{place.label.rstrip('/')}/"
        if not by_content:
            found.files.sort(key=lambda one: -one["changed"])
        lines: list[str] = []
        origins: list[Origins] = []
        for one in found.files:
            path = f"{prefix}{one['path']}"
            if by_content:
                lines += [f"{_shown_name(path)}:{number}: {text}" for number, text in one["lines"]]
            elif len(lines) < _MAX_HITS:
                lines.append(_shown_name(path))
            known = self._run.files.journal
            mine = known.origins_of(path, one["digest"]) if by_content else known.origins_of_name(path)
            if mine is None:
                mine = () if self._run.is_prompt(path) else (untrusted_origin("file", path),)
            origins.append(mine)
        shown = _fitting(lines)
        notes = [f"{len(found.files)} files found, {found.looked_at} looked at." if found.looked_at else ""]
        if len(shown) < len(lines) or found.more or (not by_content and len(found.files) > len(lines)):
            notes.append("There is more; narrow the pattern, the glob or the path.")
        if found.stopped:
            notes.append(
                "The search took too long and was stopped; narrow the path, or simplify the pattern."
            )
        if found.skipped:
            notes.append(
                f"{found.skipped} files were skipped: they are binary, too large or have several names."
            )
        body = fence("found", "\n".join(shown)) if shown else "Nothing was found."
        return ToolResult(content="\n".join([*filter(None, notes), body]), origins=join_origins(*origins))


def _shown_name(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _fitting(lines: Sequence[str]) -> list[str]:
    room = _SHOWN_CHARS - 1000
    shown = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    return shown
