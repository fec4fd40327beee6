"""The tool ``web_fetch``: a model reads a web page. Anybody may have written what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.client import responses
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from agent_core.errors import ToolRetry
from agent_core.models import ToolResult, tool_parameters
from agent_core.ports import Clock
from agent_core.prompt import fence
from agent_core.provenance import Trust, origins_of_call, trust_of, untrusted_origin
from agent_core.tools.effects import Effect, Review
from agent_core.tools.web.urls import MAX_CHARS, normalise_url

if TYPE_CHECKING:
    from agent_core.tools.web.readable_page import Readable
    from agent_core.tools.web.web_client import Received, WebClient  # loads aiohttp

_SHOWN_CHARS = 12_000
_HELP = {
    401: "it needs a login",
    403: "it does not let programs or strangers read this",
    404: "there is no such page",
    410: "the page is gone",
    429: "it had too many requests; try later",
    451: "it may not show this for legal reasons",
    500: "it failed; try later",
    502: "it failed; try later",
    503: "it is overloaded or being repaired; try later",
    504: "it failed; try later",
}


class WebFetchTool:
    """The tool ``web_fetch`` of one run; ``client`` is built on first use."""

    name = "web_fetch"
    effect = Effect.NETWORK_GET
    repeatable = True
    description = "Read a web page or text file."
    parameters = tool_parameters("url", url="string", offset="integer")

    def __init__(self, client: Callable[[], WebClient], clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._last: tuple[str, str, Readable] | None = None

    def targets(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        """The address as `normalise_url` spells it, or as it was given if it is none."""
        given = str(arguments.get("url"))
        try:
            return (normalise_url(given),)
        except ValueError:
            return (given[:MAX_CHARS],)

    async def review(self, **arguments: Any) -> Review | None:
        """None: the address says it all. Raises ToolError for one that a yes could not open either."""
        try:
            self._client().check(normalise_url(str(arguments.get("url"))))
        except ValueError as error:
            raise ToolRetry(f"This cannot be read: {error}.") from error
        return None

    async def execute(self, **arguments: Any) -> ToolResult:
        """The text of ``url`` from ``offset`` on."""
        offset = max(0, int(arguments.get("offset") or 0))
        try:
            wanted = normalise_url(str(arguments.get("url")))
        except ValueError as error:
            return ToolResult(content=f"This cannot be read: {error}.", is_error=True)
        try:
            if self._last is None or self._last[0] != wanted or not offset:
                client = self._client()
                named = trust_of(origins_of_call()) <= Trust.KNOWN
                received = await client.get(wanted, named=named, check_type=_check_type)
                problem = status_text(received)
                if problem:
                    return ToolResult(content=problem, is_error=True)
                self._last = (wanted, received.address, await _read(received, client))
        except ValueError as error:
            # It names what the server calls its answer, in the server's own words.
            origin = untrusted_origin("web", wanted, self._clock.now())
            return ToolResult(content=f"This cannot be read: {error}.", is_error=True, origins=(origin,))
        _, address, page = self._last
        origin = untrusted_origin("web", address, self._clock.now())
        return ToolResult(content=_shown(address, page, offset), origins=(origin,))


def status_text(received: Received) -> str:
    """Return why the status leaves nothing to read; empty if there is content."""
    status = received.status
    if status in (204, 205, 304):
        return f"The server answered {status}: there is no content."
    if 200 <= status < 300:
        return ""
    said = _HELP.get(status) or responses.get(status, "no known status").lower()
    again = received.retry_after
    when = f" (in {again} seconds)" if again.isdecimal() and len(again) < 7 else ""
    return f"The server answered {status}: {said}{when}."


def _check_type(content_type: str) -> None:
    from agent_core.tools.web.pdf import NO_LIBRARY, can_read_pdf  # noqa: PLC0415
    from agent_core.tools.web.readable_page import check_type, is_pdf, may_be_document  # noqa: PLC0415 - not before a page is read

    if not may_be_document(content_type):
        check_type(content_type)
    elif is_pdf(content_type) and not can_read_pdf():
        raise ValueError(NO_LIBRARY)


async def _read(received: Received, client: WebClient) -> Readable:
    from agent_core.tools.web.pdf import called_document, document_kind, read_pdf  # noqa: PLC0415
    from agent_core.tools.web.readable_page import may_be_document, read_content  # noqa: PLC0415 - not before a page is read

    if may_be_document(received.content_type):
        media_type = received.content_type.partition(";")[0].strip().lower()
        kind = document_kind(received.body) or called_document(media_type)
        if kind and received.is_cut:
            raise ValueError(f"it is a document ({kind}) that is larger than tools.web.max_mb")
        if kind:
            return await read_pdf(received.body, kind=kind)
    read = partial(
        read_content, received.body, received.content_type, address=received.address, is_cut=received.is_cut
    )
    return await anyio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=client.reading)


def _shown(address: str, page: Readable, offset: int) -> str:
    offset = min(offset, len(page.text))
    text = page.text[offset : offset + _SHOWN_CHARS]
    end = offset + len(text)
    notes = []
    if offset or end < len(page.text):
        notes.append(f"Characters {offset} to {end} of {len(page.text)}.")
    if end < len(page.text):
        notes.append(f"Go on with offset {end}.")
    elif page.is_cut:
        notes.append("The page is longer; its end cannot be read here.")
    if page.hid_text:
        notes.append("Hidden text was left out.")
    if not page.text:
        notes.append("There is no text in it; it may need a browser.")
    title = f"Title: {page.title}\n" if page.title else ""
    return "\n".join([*notes, fence("web_page", f"{address}\n{title}\n{text}")])
