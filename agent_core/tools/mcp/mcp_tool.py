"""One tool of a server, as a run uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from agent_core.models import ToolResult
from agent_core.prompt import fence
from agent_core.provenance import Origins
from agent_core.tools.effects import Effect, Review
from agent_core.tools.mcp.definitions import Definition, model_name
from agent_core.tools.mcp.elicitation import Elicitation
from agent_core.tools.mcp.server_connection import (
    ServerAnswer,
    ServerCouldNotAsk,
    ServerError,
    ServerLost,
    ServerUnavailable,
)
from agent_core.tools.person_port import asker
from agent_core.tools.policy import HARMLESS
from agent_core.tools.tool_registry import fit_arguments

if TYPE_CHECKING:
    from agent_core.messages import Attachment
    from agent_core.tools.files.read_tools import PictureViewer

KeepFile = Callable[[str, bytes, Origins], Awaitable[str | None]]
"""Keeps what does not fit into a result under a name like this; gives its path for the model, or None."""
_SHOWN_CHARS = 14_000
_PICTURES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
}
_log = structlog.get_logger(__name__)


class McpTool:
    """
    Calls one tool.

    Args:
        call: Calls it and answers the server's questions.
        effect: The owner's setting; None: each call needs an approval.
        origins: Returns the origins of what the server says now.
        seconds: The limit, including the server's start.
        look: Shows result pictures to the model; None: it sees none.
    """

    deferred = True

    def __init__(
        self,
        server: str,
        definition: Definition,
        call: Callable[[str, Mapping[str, Any], Elicitation], Awaitable[ServerAnswer]],
        *,
        effect: Effect | None,
        origins: Callable[[], Origins],
        seconds: float,
        keep: KeepFile,
        look: PictureViewer | None = None,
    ) -> None:
        self.name = model_name(server, definition.name)
        self.description = f"[{server}] {definition.description}".strip()
        self.parameters = definition.schema
        # The server checks its arguments; a schema that it made up may take for ever to be looked at.
        self.checked: Mapping[str, Any] = {
            "type": "object",
            "properties": {str(name): {} for name in definition.schema.get("properties", {})},
            "required": list(definition.schema.get("required", ())),
        }
        self.effect = effect or Effect.EXECUTE
        self.needs_approval = effect is None
        self.repeatable = effect in HARMLESS
        self.seconds = seconds
        self._server = server
        self._tool = definition.name
        self._digest = definition.digest
        self._call = call
        self._origins = origins
        self._keep = keep
        self._look = look

    async def review(self, /, **_: Any) -> Review:
        """Its arguments say what would be done, as the tool is described now."""
        return Review("", f"{self._digest} {self.effect.value}")

    async def execute(self, /, **arguments: Any) -> ToolResult:
        """Call it once. A call whose answer was lost is never made again by itself."""
        asking = Elicitation(self._server, asker())
        result = await self._outcome(asking, arguments)
        if not asking.notes:
            return result
        return result.model_copy(update={"content": "\n".join([*asking.notes, result.content])})

    async def _outcome(self, asking: Elicitation, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            answer = await self._call(self._tool, fit_arguments(arguments, self.parameters), asking)
        except ServerUnavailable as error:
            _log.info("mcp.not_called", server=self._server, tool=self.name, reason=str(error))
            # The reason may be the last words of the program, so it has the origin of all that it says.
            text = f"Nothing was done: the server {self._server} cannot be used now: {error}."
            return ToolResult(content=text, is_error=True, origins=self._origins())
        except ServerLost as error:
            _log.warning("mcp.call_lost", server=self._server, tool=self.name, reason=str(error))
            text = f"The outcome is unknown ({error}): it may or may not have been done. Do not repeat it."
            return ToolResult(content=text, is_error=True, is_unknown=True, origins=self._origins())
        except ServerCouldNotAsk:
            text = (
                f"The server {self._server} wanted to ask the person something during this call and could "
                "not, so it gave the call up. It can from now on: call it again if that does no harm."
            )
            return ToolResult(content=text, is_error=True, origins=self._origins())
        except ServerError as error:
            return self._result(ServerAnswer(str(error), failed=True), ())
        notes, pictures = await self._kept(answer)
        return self._result(answer, notes).model_copy(update={"pictures": tuple(pictures)})

    @property
    def definition_origins(self) -> Origins:
        """The server, for what it says of the tool as for all that it says."""
        return self._origins()

    async def _kept(self, answer: ServerAnswer) -> tuple[list[str], list[Attachment]]:
        """Store large texts, files and pictures of an answer; return notes and pictures for the model."""
        notes, pictures = [], []
        if len(answer.text) > _SHOWN_CHARS:
            path = await self._keep(
                f"{self._server}.txt", answer.text.encode("utf-8", "replace"), self._origins()
            )
            rest = f"All of it is in {path!r}; read_file reads it in parts." if path else "Ask for less."
            notes.append(f"These are the first {_SHOWN_CHARS:,} of {len(answer.text):,} characters. {rest}")
        for media_type, content in answer.files:
            ending = next((each for magic, each in _PICTURES.items() if content.startswith(magic)), ".bin")
            what = "A picture" if ending != ".bin" else f"A file (said to be {media_type or 'unnamed'})"
            path = await self._keep(f"{self._server}{ending}", content, self._origins())
            shown = None
            if ending != ".bin" and self._look is not None and len(content) <= self._look.max_bytes:
                shown = await self._look.keep(f"{self._server}{ending}", content)
            where = f"is in {path!r}; send_file sends it" if path else "was left out"
            if shown is not None:
                pictures.append(shown)
                where = f"is shown to you{f', and {where}' if path else ''}"
            elif path and ending != ".bin":
                where = f"is in {path!r}; read_file reads it, send_file sends it"
            notes.append(f"{what} of {len(content):,} bytes {where}.")
        return notes, pictures

    def _result(self, answer: ServerAnswer, notes: list[str] | tuple[str, ...]) -> ToolResult:
        text = answer.text[:_SHOWN_CHARS]
        said = fence("mcp_result", text) if text.strip() else ("" if notes else "Its answer is empty.")
        content = "\n".join(part for part in (*notes, said) if part)
        return ToolResult(content=content, is_error=answer.failed, origins=self._origins())
