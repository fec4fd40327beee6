"""Documents that people send are read; one that cannot be says why, in one sentence."""

from __future__ import annotations

import io
import zipfile

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session, ToolResult
from agent_core.tools.attachments import ConversationFiles, ReadAttachmentTool
from agent_core.tools.web import pdf
from agent_core.tools.web.pdf import ENCRYPTED_OFFICE
from channels.attachments import AttachmentStore
from tests.clock import LoopClock
from tests.doubles.in_memory_storage import InMemoryMemory

pytest.importorskip("pypdf")

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
ODT = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'


def zipped(**parts: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            stored = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(name, text, stored)
    return made.getvalue()


DOCX = zipped(**{
    "word/document.xml": f"<w:document {W}><w:p><w:t>Rent: </w:t><w:t>900 EUR</w:t></w:p>"
    "<w:p><w:delText>gone</w:delText><w:t>due</w:t><w:tab/><w:t>Friday</w:t></w:p></w:document>"
})  # fmt: skip
PPTX = zipped(**{
    "ppt/presentation.xml": "<x/>",
    **{f"ppt/slides/slide{n}.xml": f'<p xmlns:a="a"><a:p><a:t>slide {n}</a:t></a:p></p>' for n in (10, 2, 1)},
})  # fmt: skip
XLSX = zipped(**{
    "xl/workbook.xml": "<x/>",
    "xl/sharedStrings.xml": "<sst><si><t>milk</t></si><si><r><t>bre</t></r><r><t>ad</t></r></si></sst>",
    "xl/worksheets/sheet1.xml": '<s><row><c t="s"><v>1</v></c><c><v>2.5</v></c></row>'
    '<row><c t="s"><v>0</v></c><c t="inlineStr"><is><t>now</t></is></c></row></s>',
})  # fmt: skip
TEXT = zipped(**{
    "mimetype": "application/vnd.oasis.opendocument.text",
    "content.xml": f"<x {ODT}><text:h>Plan</text:h><text:p>Meet <text:span>Bob</text:span></text:p></x>",
})  # fmt: skip
SHEETS = [
    ("a.docx", DOCX, ["Rent: 900 EUR\ndue\tFriday"]),
    ("a.pptx", PPTX, ["slide 1\n\nslide 2\n\nslide 10"]),
    ("a.xlsx", XLSX, ["bread\t2.5\nmilk\tnow"]),
    ("a.odt", TEXT, ["Plan\nMeet Bob"]),
]
BOMB = "<!DOCTYPE x [<!ENTITY a0 'aaaaaaaaaa'>" + "".join(
    f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12)
)


async def reading(tmp_path, name: str, content: bytes) -> ToolResult:
    store = AttachmentStore(tmp_path / "home")
    file = await store.save(name, "application/octet-stream", content)
    session = Session(
        SessionKey("matrix", "!r:hs"), MemoryScope(ScopeKind.OWNER), turn="t", attachments=(file,)
    )
    tool = ReadAttachmentTool(
        ConversationFiles(session, InMemoryMemory(clock=LoopClock())), store, LoopClock()
    )
    return await tool.execute(id=file.id)


@pytest.mark.parametrize(("name", "content", "texts"), SHEETS)
async def test_an_office_document_is_read(tmp_path, name: str, content: bytes, texts: list[str]) -> None:
    found = await reading(tmp_path, name, content)
    assert not found.is_error
    assert all(text in found.content for text in texts)
    assert "gone" not in found.content
    assert found.origins


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"%PDF-1.7\nrubbish", "a PDF document that is broken"),
        (DOCX[:200] + b"word/document.xml", "an office document that is broken"),
        (zipped(**{"word/document.xml": f"{BOMB}]><x>&a11;</x>"}), "an office document that is broken"),
        (zipped(**{"word/document.xml": f"<w:document {W}><w:p/></w:document>"}), "without text"),
        (b"\xd0\xcf\x11\xe0\0\0" + ENCRYPTED_OFFICE, "encrypted office document"),
        (zipped(**{"a.txt": "x"}), "is not text (application/octet-stream)"),
    ],
)
async def test_what_cannot_be_read_says_why(tmp_path, content: bytes, why: str) -> None:
    found = await reading(tmp_path, "a.bin", content)
    assert found.is_error
    assert why in found.content


async def test_a_pdf_document_says_which_extra_reads_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pdf, "can_read_pdf", lambda: False)
    assert "extra 'pdf'" in (await reading(tmp_path, "a.pdf", b"%PDF-1.7\n")).content
