"""
The process that reads a PDF or an office document. It is started by path and imports nothing of squidbot. The
document comes on standard input. Standard output has one JSON object a line: first the title, or what is
wrong, then the text of each page, and at the end ``{"done": true}``. Its time and memory are the kernel's to
limit, and its parent ends it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal
from xml.etree import ElementTree as ET

_MEMORY_BYTES = 400_000_000
_MAX_CHARS = 2_000_000
_PR_SET_PDEATHSIG = 1
_PARTS = re.compile(r"(word/document|xl/worksheets/sheet|ppt/slides/slide|content)(\d{0,6})\.xml")
_STRINGS = "xl/sharedStrings.xml"


def _limit() -> None:
    # Where memory is short, this process is the one to go.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for what, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, 20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)  # noqa: PLW2901 - the same, lower
        resource.setrlimit(what, (most, most))
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _read(content: bytes) -> None:
    import pypdf  # noqa: PLC0415 - after the limits are set

    reader = pypdf.PdfReader(BytesIO(content), strict=False)
    # Many are encrypted with no password, only to forbid printing.
    if reader.is_encrypted and not reader.decrypt(""):
        _say(problem="is encrypted")
        return
    title = reader.metadata.title if reader.metadata else None
    _say(title=title if isinstance(title, str) else "", pages=len(reader.pages))
    chars = 0
    for page in reader.pages:
        text = page.extract_text()
        _say(text=text)
        chars += len(text)
        if chars > _MAX_CHARS:
            return
    _say(done=True)


def _read_office(content: bytes) -> None:
    """Say the text of a docx, xlsx, pptx or an OpenDocument file: zipped XML, each part as one page."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        found = [
            (found[1], int(found[2] or 0), name)
            for name in archive.namelist()
            if (found := _PARTS.fullmatch(name))
        ]
        if not found:
            raise ValueError("it has no part with text")
        strings = _strings(archive) if _STRINGS in archive.namelist() else []
        for _, _, name in sorted(found):
            with archive.open(name) as part:
                read = _rows(part, strings) if name.startswith("xl/") else _paragraphs(part)
                _say(text=read)
    _say(done=True)


def _paragraphs(part: IO[bytes]) -> str:
    """The paragraphs of a text or a slide, one a line. What was deleted and codes of fields are left out."""
    lines: list[str] = []
    words: list[str] = []
    is_word = False  # OpenDocument has its text in the paragraph, the others in ``t``
    for event, element in _elements(part, "start", "end"):
        name = _local(element)
        if event == "start":
            is_word = is_word or (name == "t" and "opendocument" not in element.tag)
        elif name == "t" and is_word:
            words.append(element.text or "")
        elif name in ("tab", "br"):
            words.append("\t" if name == "tab" else "\n")
        elif name in ("p", "h"):
            lines.append("".join(words) if is_word else "".join(element.itertext()))
            words.clear()
            element.clear()
    return "\n".join(lines)[:_MAX_CHARS]


def _strings(archive: zipfile.ZipFile) -> list[str]:
    """The texts that cells of an xlsx name by number."""
    found: list[str] = []
    with archive.open(_STRINGS) as part:
        for _, element in _elements(part, "end"):
            if _local(element) == "si":
                found.append("".join(each.text or "" for each in element.iter() if _local(each) == "t"))
                element.clear()
    return found


def _rows(part: IO[bytes], strings: list[str]) -> str:
    """The rows of a sheet, one a line, cells parted by tabs."""
    rows: list[str] = []
    for _, element in _elements(part, "end"):
        if _local(element) == "row":
            cells: list[str] = []
            for cell in element:
                value = "".join(each.text or "" for each in cell.iter() if _local(each) in ("v", "t"))
                by_number = cell.get("t") == "s" and value.isdecimal() and int(value) < len(strings)
                cells.append(strings[int(value)] if by_number else value)
            rows.append("\t".join(cells))
            element.clear()
    return "\n".join(rows)[:_MAX_CHARS]


def _elements(part: IO[bytes], *events: Literal["start", "end"]) -> Iterator[tuple[str, ET.Element]]:
    # Its time and memory are limited, and it fetches nothing.
    return ET.iterparse(part, events=events)  # noqa: S314


def _local(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


if __name__ == "__main__":
    _limit()
    try:
        document = sys.stdin.buffer.read()
        (_read_office if document.startswith(b"PK") else _read)(document)
    except MemoryError:
        _say(problem="takes too much to read")
    except Exception:  # noqa: BLE001 - a broken document breaks the library anywhere
        _say(problem="is broken")
