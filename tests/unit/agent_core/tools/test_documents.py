"""Documents that people send are read; one that cannot be says why, in one sentence."""

from __future__ import annotations

import io
import zipfile

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session, ToolResult
from agent_core.tools.attachment_tools import ConversationFiles, ReadAttachmentTool
from agent_core.tools.web import pdf
from agent_core.tools.web.pdf import ENCRYPTED_OFFICE
from agent_core.tools.web.web_fetch import WebFetchTool
from channels.attachments import AttachmentStore
from tests.clock import LoopClock, ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.file_tools_world import FileDesk
from tests.web_world import client, http, server

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


async def reading(
    tmp_path, name: str, content: bytes, media_type: str = "application/octet-stream"
) -> ToolResult:
    store = AttachmentStore(tmp_path / "home")
    file = await store.save(name, media_type, content)
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
        (zipped(**{"word/document.xml.bak": "x"}), "an office document that is broken"),
        (b"\xd0\xcf\x11\xe0\0\0" + ENCRYPTED_OFFICE, "encrypted office document"),
        (zipped(**{"a.txt": "x"}), "is not text (application/octet-stream)"),
        (b"\x78\x9f\x3e\x22\1\0" + b"x" * 50, "Outlook's winmail.dat (ask its sender"),
    ],
)
async def test_what_cannot_be_read_says_why(tmp_path, content: bytes, why: str) -> None:
    found = await reading(tmp_path, "a.bin", content)
    assert found.is_error
    assert why in found.content


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04 crafted", b"\xd0\xcf\x11\xe0\0\0", zipped(**{"a.txt": "x"})]
)
async def test_what_is_called_a_document_and_is_none_is_called_broken(tmp_path, content: bytes) -> None:
    """Whoever sent a document does not know what "not text" has to do with it; other files are still that."""
    assert "called an office document, but broken" in (await reading(tmp_path, "a.XLSX", content)).content
    assert "is not text" in (await reading(tmp_path, "a.zip", content)).content


async def test_a_picture_that_is_not_shown_is_called_one(tmp_path) -> None:
    """Phones send HEIC by mail."""
    found = (await reading(tmp_path, "IMG_1.heic", b"\0\0\0\x18ftypheic" + bytes(50), "image/heic")).content
    assert "a picture of a kind that you cannot be shown (ask for it as JPEG or PNG)" in found


async def test_a_pdf_document_says_which_extra_reads_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pdf, "can_read_pdf", lambda: False)
    assert "extra 'pdf'" in (await reading(tmp_path, "a.pdf", b"%PDF-1.7\n")).content


@pytest.mark.parametrize(("name", "content", "texts"), SHEETS)
async def test_a_document_in_the_workspace_is_read_like_an_attachment(
    tmp_path, name: str, content: bytes, texts: list[str]
) -> None:
    """With line numbers, as of every file; what cannot be read says so in one sentence."""
    desk = FileDesk(tmp_path / "home")
    (desk.ws / name).write_bytes(content)
    (desk.ws / "broken.docx").write_bytes(DOCX[:200] + b"word/document.xml")
    (desk.ws / "locked.zip").write_bytes(zipped(**{"a.txt": "x"}))

    shown = (await desk.ok("read_file", path=name)).content
    numbered = "\n".join(f"{n}\t{line}" for n, line in enumerate(texts[0].split("\n"), 1))
    assert f"<file_text>\n{numbered}\n</file_text>" in shown
    assert f"2\t{texts[0].split(chr(10))[1]}" in (await desk.ok("read_file", path=name, offset=2)).content
    broken = await desk("read_file", path="broken.docx")
    assert broken.is_error
    assert broken.content == "'broken.docx' cannot be read: it is an office document that is broken."
    assert "is a ZIP archive or an office document of" in (await desk("read_file", path="locked.zip")).content


@pytest.mark.parametrize(
    "media_type", ["application/octet-stream", "application/vnd.oasis.opendocument.text"]
)
async def test_a_fetched_document_is_read_whatever_it_is_called(media_type: str) -> None:
    async with server() as public:
        public.answers["/"] = http(200, TEXT, media_type)
        web = client()
        result = await WebFetchTool(lambda: web, ManualClock()).execute(url=public.url())
        public.answers["/"] = http(200, b"PK no document", "application/vnd.oasis.opendocument.text")
        other = await WebFetchTool(lambda: web, ManualClock()).execute(url=public.url())
    assert "Plan\nMeet Bob" in result.content
    assert not result.is_error
    assert result.origins
    assert other.is_error
    assert "an office document that is broken" in other.content
