"""
The tools for attachments: ``read_attachment`` reads a received file, ``send_file`` sends one with the answer.
`ConversationFiles` knows only the attachments of this conversation with this audience. Files of the workspace
are the owner's and go out only where the owner alone reads, whatever their names or links. A file is copied
when the tool runs, so that a restarted turn sends the same.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from agent_core.confined_files import open_below
from agent_core.errors import ToolFailed, ToolRetry
from agent_core.memory_ports import MemoryPort
from agent_core.messages import Attachment
from agent_core.models import Message, ScopeKind, Session, ToolResult, tool_parameters
from agent_core.ports import AttachmentPort, Clock
from agent_core.prompt import attachment_lines, fence
from agent_core.prompt_budget import is_picture
from agent_core.provenance import Origins, untrusted_origin
from agent_core.tools.effects import Effect, Review, approved_state
from agent_core.tools.files.change_tools import ReceivedFile
from agent_core.tools.plain_text import looks_like_html, text_in

_ID = re.compile(r"[0-9a-f]{12}")
_SHOWN_CHARS = 12_000
_MAX_FILES = 10
_READ_LIMIT_S = 20.0
_UNSEEN = "a picture of a kind that you cannot be shown (ask for it as JPEG or PNG)"
_WINMAIL = "Outlook's winmail.dat (ask its sender to send the mail again as HTML or plain text)"


class ConversationFiles:
    """The attachments of a conversation that its present audience has seen arrive."""

    def __init__(self, session: Session, memory: MemoryPort) -> None:
        self._session = session
        self._memory = memory

    async def find(self, file_id: str) -> Attachment | None:
        """The newest attachment with this id, None if the conversation has none."""
        found = await self.find_with_origins(file_id)
        return None if found is None else found[0]

    async def find_with_origins(self, file_id: str) -> tuple[Attachment, Origins] | None:
        """The same, with the origins of the message that brought it."""
        for file in self._session.attachments:
            if file.id == file_id:
                return file, self._session.origins
        tail = await self._memory.load_history(self._session.id)
        if (found := self._among(tail.messages, file_id)) is not None:
            return found
        end = tail.cursor
        for _ in range(10):
            if end <= 0:
                break
            start = max(0, end - 1000)
            block = await self._memory.load_segment(self._session.id, start=start, max_messages=end - start)
            if (found := self._among(block.messages, file_id)) is not None:
                return found
            end = start
        return None

    def _among(self, messages: tuple[Message, ...], file_id: str) -> tuple[Attachment, Origins] | None:
        scope = str(self._session.scope)
        for message in reversed(messages):
            for file in message.attachments:
                if file.id == file_id and message.scope == scope and self._was_there(message):
                    return file, message.sources
        return None

    def _was_there(self, message: Message) -> bool:
        since, at = self._session.since, message.timestamp
        return since is None or (at is not None and at >= since)

    def list_text(self) -> str:
        """The attachments of this turn, for a model that asked for an unknown one."""
        lines = attachment_lines(self._session.attachments[:20])
        return f" With this message came:\n{lines}" if lines else ""


class ReadAttachmentTool:
    """The tool ``read_attachment`` of one run."""

    name = "read_attachment"
    effect = Effect.PRIVATE_READ
    repeatable = True
    description = "Read a file of this conversation as text (id: after Attachment)."
    parameters = tool_parameters("id", id="string", offset="integer")

    def __init__(self, files: ConversationFiles, attachments: AttachmentPort, clock: Clock) -> None:
        self._files = files
        self._attachments = attachments
        self._now = clock.now

    async def read_whole(self, file_id: str, most: int) -> ReceivedFile:
        """See `agent_core.tools.files.change_tools.Received`."""
        found = await self._files.find_with_origins(file_id.lower())
        if found is None:
            raise ToolRetry(f"This conversation has no such attachment.{self._files.list_text()}")
        file, brought_by = found
        if file.size_bytes > most:
            raise ToolFailed(f"It has {file.size_bytes:,} bytes; at most {most:,} can be saved.")
        try:
            content = await self._attachments.read(file, max_bytes=most)
        except LookupError as error:
            raise ToolFailed("This file is no longer kept; ask for it again.") from error
        except OSError as error:
            raise ToolFailed("This file cannot be read at the moment.") from error
        return ReceivedFile(file.name, content, _origins_of(file, brought_by, self._now()))

    async def execute(self, **arguments: Any) -> ToolResult:
        """Give the text of the attachment ``id`` from ``offset`` on."""
        found = await self._files.find_with_origins(str(arguments.get("id")).strip().lower())
        if found is None:
            return _failed(f"This conversation has no such attachment.{self._files.list_text()}")
        file, brought_by = found
        if is_picture(file):
            return _failed("This is a picture without text to read; you see it only if it was shown to you.")
        from agent_core.tools.web.pdf import ENCRYPTED_OFFICE, PDF, called_document, document_kind  # noqa: PLC0415

        try:
            content = await self._attachments.read(file, max_bytes=4_000_000)
            if kind := document_kind(content):
                return await self._read_document(file, brought_by, kind, int(arguments.get("offset") or 0))
            cut = file.size_bytes > len(content)
            html = looks_like_html(file.media_type, file.name)
            with anyio.fail_after(_READ_LIMIT_S):
                text = await anyio.to_thread.run_sync(
                    lambda: text_in(content, html=html, cut=cut), abandon_on_cancel=True
                )
        except (LookupError, OSError) as error:  # TimeoutError is one
            gone = isinstance(error, LookupError)
            why = "is no longer kept; ask for it again" if gone else "cannot be read at the moment"
            return _failed(f"This file {why}.")
        if text is None:
            what = _UNSEEN if file.media_type.startswith("image/") else f"not text ({file.media_type})"
            if kind := called_document(file.media_type, file.name):
                what = f"called {'a' if kind == PDF else 'an'} {kind}, but broken or something else"
            what = "an encrypted office document" if ENCRYPTED_OFFICE in content else what
            what = _WINMAIL if content.startswith(b"\x78\x9f\x3e\x22") else what
            return _failed(f"This file is {what} and cannot be read here.")
        return ToolResult(
            content=_slice(text, int(arguments.get("offset") or 0), cut=cut),
            origins=_origins_of(file, brought_by, self._now()),
        )

    async def _read_document(
        self, file: Attachment, brought_by: Origins, kind: str, offset: int
    ) -> ToolResult:
        """The text of a PDF or office document, which a confined process takes out of it."""
        from agent_core.tools.web.pdf import MAX_DOCUMENT_BYTES, read_pdf  # noqa: PLC0415 - first use

        if file.size_bytes > MAX_DOCUMENT_BYTES:
            return _failed(f"This {kind} is too large to be read here.")
        content = await self._attachments.read(file, max_bytes=MAX_DOCUMENT_BYTES)
        try:
            found = await read_pdf(content, kind=kind)
        except ValueError as error:
            return _failed(f"This file cannot be read: {error}.")
        shown = _slice(found.text, offset, cut=found.is_cut)
        return ToolResult(content=shown, origins=_origins_of(file, brought_by, self._now()))


class SendFileTool:
    """
    The tool ``send_file`` of one run.

    Args:
        files: The conversation's attachments, which may be sent again.
        beyond: Files elsewhere may be sent, except below ``private``.
        folders: Further allowed folders.
        private: The home with its keys and others' conversations.
    """

    name = "send_file"
    deferred = True
    effect = Effect.PRIVATE_READ  # it goes where the answer goes, to people who may see it
    repeatable = True

    def __init__(
        self,
        files: ConversationFiles,
        attachments: AttachmentPort,
        session: Session,
        *,
        workspace: Path,
        max_bytes: int = 25_000_000,
        beyond: bool = False,
        private: Path | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        own = session.scope.kind is ScopeKind.OWNER
        self.description = "Send with your answer " + (
            "a file of the workspace, or an attachment of this conversation."
            if own
            else "an attachment of this conversation."
        )
        what = "Path, or an attachment's id" if own else "The attachment's id"
        self.parameters = tool_parameters("path", path={"type": "string", "description": what})
        self._files = files
        self._attachments = attachments
        self._own = own
        self._workspace = workspace
        self._max_bytes = max_bytes
        self._beyond = beyond
        self._private = private
        self._folders = (workspace, *folders)
        self._sent = 0

    async def review(self, **arguments: Any) -> Review:
        """The file as it is now: after a yes, exactly that content is sent."""
        wanted = str(arguments.get("path")).strip()
        if _ID.fullmatch(wanted.lower()) and await self._files.find(wanted.lower()) is not None:
            return Review("", wanted.lower())  # called by its content
        if not self._own:
            return Review("", "none")
        try:
            size, digest = await anyio.to_thread.run_sync(self._hashed, wanted)
        except (ValueError, LookupError, OSError):
            return Review("", "none")
        return Review(f"{wanted}\n{size} bytes, SHA-256 {digest}", digest)

    def _hashed(self, wanted: str) -> tuple[int, str]:
        folder, inside = self._place(wanted)
        with os.fdopen(open_below(folder, inside), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > self._max_bytes:
                raise ValueError("it is too large to be sent")
            return size, hashlib.file_digest(file, "sha256").hexdigest()

    async def execute(self, **arguments: Any) -> ToolResult:
        """Attach the file ``path`` to the answer."""
        wanted = str(arguments.get("path")).strip()
        if self._sent >= _MAX_FILES:
            return _failed(f"Only {_MAX_FILES} files go out with one answer.")
        file = await self._files.find(wanted.lower()) if _ID.fullmatch(wanted.lower()) else None
        if file is None:
            if not self._own:
                return _failed(
                    f"Only attachments of this conversation can be sent here, by their id."
                    f"{self._files.list_text()}"
                )
            try:
                file = await self._from_disk(wanted)
                if (approved := approved_state()) and file.sha256 != approved:
                    return _failed("The file has changed since it was approved; it is not sent.")
            except (ValueError, LookupError) as error:
                return _failed(f"{wanted[:200]!r} cannot be sent: {error}.")
            except OSError:
                return _failed("The file cannot be read, or kept, at the moment.")
        self._sent += 1
        return ToolResult(
            content=f"Done: {attachment_lines([file])} goes out with your answer.", attachments=(file,)
        )

    async def _from_disk(self, wanted: str) -> Attachment:
        folder, inside = self._place(wanted)
        return await self._attachments.keep_file(folder, inside, max_bytes=self._max_bytes)

    def _place(self, wanted: str) -> tuple[Path, str]:
        """Return the allowed folder of a file and its path there. Raises ValueError if it may not be sent."""
        path = Path(wanted)
        if not path.is_absolute():
            return self._workspace, wanted
        above = [folder for folder in self._folders if path.is_relative_to(folder)]
        if self._is_private(path):
            raise ValueError("it is in a place that is kept private")
        if above:
            folder = max(above, key=lambda each: len(each.parts))
            return folder, str(path.relative_to(folder))
        if not self._beyond:
            raise ValueError("it is outside the workspace")
        return Path("/"), str(path.relative_to("/"))

    def _is_private(self, path: Path) -> bool:
        private = self._private is not None and path.is_relative_to(self._private)
        return ".." in path.parts or (private and not path.is_relative_to(self._workspace))


def _origins_of(file: Attachment, brought_by: Origins, at: datetime) -> Origins:
    """The origin of a file's text: attached by an allowed person, if the message that brought it says so."""
    kinds = {each.kind for each in brought_by if each.where == untrusted_origin("file", file.name).where}
    return (untrusted_origin("attachment" if kinds == {"attachment"} else "file", file.name, at),)


def _slice(text: str, offset: int, *, cut: bool) -> str:
    offset = min(max(0, offset), len(text))
    shown = text[offset : offset + _SHOWN_CHARS]
    end = offset + len(shown)
    notes = [f"Characters {offset} to {end} of {len(text)}."] if offset or end < len(text) else []
    if end < len(text):
        notes.append(f"Go on with offset {end}.")
    elif cut:
        notes.append("The file is longer; its end cannot be read here.")
    return "\n".join([*notes, fence("attachment_text", shown) if shown else "(no text)"])


def _failed(text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True)
