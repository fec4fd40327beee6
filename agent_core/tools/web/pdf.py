"""
The daemon's side of reading PDF and office documents, which runs in a process of its own
(`agent_core.tools.web.pdf_child`).
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
import anyio.abc
import anyio.to_thread

from agent_core.html_to_text import MAX_CHARS
from agent_core.tools.web.readable_page import OFFICE_TYPES, PDF_TYPES, Readable

_CHILD = Path(__file__).with_name("pdf_child.py")
_SECONDS = 20.0
_MAX_OUTPUT_BYTES = 16_000_000
NO_LIBRARY = "it is a PDF document, and squidbot is installed without its extra 'pdf'"
MAX_DOCUMENT_BYTES = 25_000_000
"""The size limit of a document, as of attachments."""


def can_read_pdf() -> bool:
    """Return True if the PDF library is installed."""
    return find_spec("pypdf") is not None


PDF, OFFICE = "PDF document", "office document"
_OFFICE_PARTS = (
    *(b"word/document.xml", b"xl/workbook.xml", b"ppt/presentation.xml"),
    b"application/vnd.oasis.opendocument.",
)
_OFFICE_NAMES = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp")
ENCRYPTED_OFFICE = "E\0n\0c\0r\0y\0p\0t\0e\0d\0P\0a\0c\0k\0a\0g\0e\0".encode("latin-1")
"""The name of the only stream of an office document with a password."""
_children = anyio.CapacityLimiter(1)


def document_kind(content: bytes) -> str:
    """The kind of a document whose text `read_pdf` may find; empty for any other file."""
    if content[:1_024].find(b"%PDF-") >= 0:
        return PDF
    is_office = content.startswith(b"PK\x03\x04") and any(part in content for part in _OFFICE_PARTS)
    return OFFICE if is_office else ""


def called_document(media_type: str, name: str = "") -> str:
    """The kind of a document that a file is said to be, by its type or name; empty for any other file."""
    if media_type.startswith(OFFICE_TYPES) or name.lower().endswith(_OFFICE_NAMES):
        return OFFICE
    return PDF if media_type in PDF_TYPES or name.lower().endswith(".pdf") else ""


async def read_pdf(content: bytes, *, seconds: float = _SECONDS, kind: str = PDF) -> Readable:
    """Return the text by page; if the time runs out, the pages so far. Raises ValueError with a text."""
    if kind == PDF and not can_read_pdf():
        raise ValueError(NO_LIBRARY)
    title, done = "", False
    pages: list[str] = []
    async with _children:
        objects = await _said(content, seconds)
    for said in objects:
        if "problem" in said and not pages:
            raise ValueError(f"it is {_a(kind)} that {said['problem']}")
        title = str(said.get("title") or title)
        if "text" in said:
            pages.append(str(said["text"]).strip())
        done = done or "done" in said
    whole = "\n\n".join(page for page in pages if page)
    if not done and not pages:
        raise ValueError(f"it is {_a(kind)} that takes too much to read")
    if not whole:
        raise ValueError(f"it is {_a(kind)} without text")
    return Readable(" ".join(title.split())[:300], whole[:MAX_CHARS], is_cut=not done)


def _a(kind: str) -> str:
    return f"a {kind}" if kind == PDF else f"an {kind}"


async def _said(content: bytes, seconds: float) -> list[dict[str, object]]:
    """Run the child on the content and return its output; the child is gone afterwards."""
    # -I: neither the environment nor the current folder says what is loaded.
    process = await anyio.open_process(
        [sys.executable, "-I", str(_CHILD)], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}
    )
    output = bytearray()
    try:
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_hand_over, process, content)
                assert process.stdout is not None
                async for piece in process.stdout:
                    output += piece
                    if len(output) > _MAX_OUTPUT_BYTES:
                        break
                tasks.cancel_scope.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()
    lines = output.split(b"\n")[:-1]
    return await anyio.to_thread.run_sync(lambda: [json.loads(line) for line in lines])


async def _hand_over(process: anyio.abc.Process, content: bytes) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await process.stdin.send(content)
        await process.stdin.aclose()
