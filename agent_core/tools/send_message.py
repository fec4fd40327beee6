"""
The tool ``send_message``: a model writes to the owner on another channel or, after a yes, to somebody else.
The caller decides who may be written to: a model names a channel or an address, and `MessengerPort` knows
which of them the owner may have written to. The message leaves through the outbox, once for each call.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agent_core.messages import Attachment
from agent_core.models import ToolResult, tool_parameters
from agent_core.provenance import Origins, origins_of_call
from agent_core.tools.attachment_tools import ConversationFiles, SendFileTool
from agent_core.tools.effects import Effect, Review, approved_state, approving
from agent_core.tools.execution import step_of_call

_ID = re.compile(r"[0-9a-f]{12}")
_LONGEST = 20_000
_MAX_FILES = 5


class MessengerPort(Protocol):
    """The recipients that one run may write to. Methods raise `ToolError` with a text."""

    def is_own(self, to: str) -> bool:
        """Return True if ``to`` is the owner, on one of the owner's own channels."""
        ...

    def add_sender(self, to: str, text: str) -> str:
        """The text as it is sent: to somebody else it says from whom it is."""
        ...

    async def recipient(self, to: str) -> str:
        """The recipient as a full address on its channel; by a name if it is certain whose that is."""
        ...

    def describe(self, recipient: str) -> str:
        """A full address as people know it."""
        ...

    async def is_posted(self, key: str) -> bool:
        """Return True if a message was posted for this ``key``."""
        ...

    async def send(
        self, to: str, text: str, files: Sequence[Attachment], *, key: str, origins: Origins
    ) -> str:
        """Post a message, once for a ``key`` that follows another one. Returns the text for the model."""
        ...


class SendMessageTool:
    """
    The tool ``send_message`` of one run.

    A message to the owner joins a conversation; one to others names no targets, so that each is asked about.
    """

    name = "send_message"
    deferred = True
    repeatable = True
    description = (
        "Write to the owner on another channel of theirs (to: 'email' or 'matrix'), or to another person "
        "or room (to: 'matrix:@bob:server', 'email:bob@domain', or the name of a person or contact); the "
        "owner is asked first. "
        "To others 'NAME says: ' is put in front of text. Your answer here does not need it."
    )
    parameters = tool_parameters(
        "to",
        "text",
        to="string",
        text={"type": "string", "description": "Markdown"},
        files={
            "type": "array",
            "items": {"type": "string"},
            "description": "Ids of attachments here, or paths of files in the workspace",
        },
    )

    def __init__(self, messenger: MessengerPort, known: ConversationFiles, sending: SendFileTool) -> None:
        self._messenger = messenger
        self._known = known
        self._sending = sending

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        """The effect of the call: a message to the owner alone tells nobody anything."""
        return Effect.PERSIST if self._messenger.is_own(str(arguments.get("to") or "")) else Effect.SEND

    async def review(self, **arguments: Any) -> Review:
        """The recipient, the whole text, and the files by their hashes, as they are now."""
        to, text, paths = _read(arguments)
        shown, digests = [], []
        for path in paths:
            told, digest = await self._look_at(path)
            shown.append(f"file: {told}")
            digests.append(digest)
        recipient = await self._messenger.recipient(to)
        lines = [
            f"to: {self._messenger.describe(recipient)}",
            *shown,
            "",
            self._messenger.add_sender(to, text),
        ]
        return Review("\n".join(lines), _state(recipient, text, digests))

    async def execute(self, **arguments: Any) -> ToolResult:
        """Post the message."""
        to, text, paths = _read(arguments)
        if not text.strip() and not paths:
            return _failed("'text' is missing.")
        if len(text) > _LONGEST or len(paths) > _MAX_FILES:
            return _failed(f"At most {_LONGEST} characters and {_MAX_FILES} files go into one message.")
        key = _key(to, text, paths)
        if await self._messenger.is_posted(key):  # whatever has become of files and contacts since
            return ToolResult(content=f"It is on its way to {to}.")
        recipient = await self._messenger.recipient(to)
        files: list[Attachment] = []
        for path in paths:
            with approving(""):  # the yes was to all of the message, which is compared below
                found = await self._sending.execute(path=path)
            if found.is_error:
                return found
            files += found.attachments
        state = _state(recipient, text, [file.sha256 for file in files])
        if (approved := approved_state()) and approved != state:
            return _failed("What was approved has changed since; it is not sent.")
        worded = self._messenger.add_sender(to, text)
        whom = to if self._messenger.is_own(to) else recipient  # a name may be somebody else's by now
        told = await self._messenger.send(whom, worded, files, key=key, origins=origins_of_call())
        return ToolResult(content=told)

    async def _look_at(self, path: str) -> tuple[str, str]:
        """A file in words, and its hash; nothing is kept of it yet."""
        file = await self._known.find(path.lower()) if _ID.fullmatch(path.lower()) else None
        if file is not None:
            return f"{file.name}, {file.size_bytes} bytes, SHA-256 {file.sha256}", file.sha256
        seen = await self._sending.review(path=path)
        return seen.text.replace("\n", ", ") or f"{path}, which cannot be read", seen.state


def _read(arguments: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    files = arguments.get("files")
    paths = [str(each).strip() for each in files] if isinstance(files, list) else []
    return str(arguments.get("to") or "").strip(), str(arguments.get("text") or ""), paths


def _key(to: str, text: str, paths: Sequence[str]) -> str:
    """Return a key of this call in its turn, the same when the step is repeated."""
    return hashlib.sha256(json.dumps([step_of_call(), to, text, list(paths)]).encode()).hexdigest()


def _state(recipient: str, text: str, digests: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([recipient, text, list(digests)]).encode()).hexdigest()


def _failed(text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True)
