"""PDF documents are read in a process of their own, which a document can break but not keep."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import pytest

from agent_core.tools.web import pdf
from agent_core.tools.web.pdf import read_pdf
from agent_core.tools.web.web_fetch import WebFetchTool
from tests.clock import ManualClock
from tests.web_world import client, http, server

pytest.importorskip("pypdf")


def document(*pages: str, title: str = "", stream: bytes | None = None) -> bytes:
    """A PDF document with a line of text on each page; the compressed ``stream`` instead of the first one's content."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    kids = []
    for number, text in enumerate(pages):
        packed = zlib.compress(f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode())
        if stream is not None and not number:
            packed = stream
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /Contents {len(objects) + 2} 0 R /MediaBox [0 0 612 792] "
            "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>".encode()
        )
        head = f"<< /Length {len(packed)} /Filter /FlateDecode >>\nstream\n".encode()
        objects.append(head + packed + b"\nendstream")
    objects[1] = f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(kids)}] >>".encode()
    objects.append(f"<< /Title ({title}) >>".encode())
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
        + b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\n" % (len(objects) + 1, len(objects))
        + b"startxref\n%d\n%%%%EOF" % len(out)
    )


def compressed_zeros(megabytes: int) -> bytes:
    """What zlib makes of so many zeros, without compressing them all: the same megabyte again and again."""
    packer = zlib.compressobj()
    head = packer.compress(b"")
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = megabytes * 2**20 % 65521 << 16 | 1
    return head + block * megabytes + b"\x03\0" + checksum.to_bytes(4, "big")


async def test_the_text_of_all_pages_is_read():
    found = await read_pdf(document("Eight arms", "and ink", title="Squid"))
    assert (found.title, found.text, found.is_cut) == ("Squid", "Eight arms\n\nand ink", False)


async def test_a_fetched_document_is_shown_like_a_page():
    async with server() as public:
        public.answers["/"] = http(200, document("Eight arms", title="Squid"), "application/pdf")
        web = client()
        result = await WebFetchTool(lambda: web, ManualClock()).execute(url=public.url())
        assert result.content == f"<web_page>\n{public.url()}\nTitle: Squid\n\nEight arms\n</web_page>"
        assert result.origins


async def test_one_that_is_too_large_or_of_which_nothing_can_be_read_says_so(monkeypatch):
    async with server() as public:
        public.answers["/"] = http(200, document("a" * 100_000), "application/pdf")
        web = client(max_bytes=200)
        result = await WebFetchTool(lambda: web, ManualClock()).execute(url=public.url())
        assert result.is_error and "larger than tools.web.max_mb" in result.content
        monkeypatch.setattr(pdf, "can_read_pdf", lambda: False)
        result = await WebFetchTool(lambda: web, ManualClock()).execute(url=public.url())
        assert result.is_error and "extra 'pdf'" in result.content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "broken"),
        (b"%PDF-1.7\n", "broken"),
        (b"no document", "broken"),
        (os.urandom(100_000), "broken"),
        (document("a")[:300], "broken|without text"),
        (document("a", stream=zlib.compress(b"")), "without text"),
        (document("a", stream=compressed_zeros(300)), "broken|without text|too much"),
    ],
)
async def test_a_document_of_which_nothing_can_be_read_is_told_in_plain_words(content, said):
    with pytest.raises(ValueError, match=said):
        await read_pdf(content)


async def test_a_reader_that_does_not_end_is_ended(monkeypatch, tmp_path):
    """Nothing of it is left, and what it has said until then counts."""
    mark = tmp_path / "pid"
    child = tmp_path / "child.py"
    child.write_text(
        "import os, sys, time, pathlib\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\n"
        'print(\'{"title": "t"}\\n{"text": "first page"}\', flush=True)\n'
        "time.sleep(1000)\n"
    )
    monkeypatch.setattr(pdf, "_CHILD", child)
    found = await read_pdf(b"a" * 5_000_000, seconds=6)
    assert (found.title, found.text, found.is_cut) == ("t", "first page", True)
    assert not Path(f"/proc/{mark.read_text()}").exists()


async def test_a_reader_that_floods_us_is_ended(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text('import sys\nwhile True: sys.stdout.write("a" * 100_000)\n')
    monkeypatch.setattr(pdf, "_CHILD", child)
    with pytest.raises(ValueError, match="too much"):
        await read_pdf(b"")


async def test_the_limits_of_the_reader_hold(tmp_path):
    """Of a reader that does more than it should: memory, files, and what it inherits."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import json, os, runpy, sys\n"
        f"child = runpy.run_path({str(pdf._CHILD)!r})\n"
        "child['_limit']()\n"
        "found = {'environment': sorted(os.environ)}\n"
        "try: bytearray(600_000_000); found['memory'] = True\n"
        "except MemoryError: found['memory'] = False\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n"
        f"    with open({str(tmp_path / 'written')!r}, 'w') as file: file.write('a')\n"
        "    found['writes'] = True\n"
        "except OSError: found['writes'] = False\n"
        "print(json.dumps({'text': json.dumps(found)}))\n"
    )
    original, pdf._CHILD = pdf._CHILD, probe
    try:
        found = await read_pdf(b"")
    finally:
        pdf._CHILD = original
    assert '"memory": false' in found.text and '"writes": false' in found.text
    assert "SECRET" not in found.text and "HOME" not in found.text
    assert bytearray(600_000_000) and sys.executable  # this process may
