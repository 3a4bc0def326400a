from __future__ import annotations

import zipfile
from io import BytesIO

import pytest

from retrieval.errors import UnreadableFile
from retrieval.loaders import docx

SPACE = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
STYLES = f'<w:styles {SPACE}><w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style></w:styles>'


def paragraph(text: str, style: str = "") -> str:
    named = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{named}<w:r><w:t>{text}</w:t></w:r></w:p>"


def make_docx(body: str, *, before: str = "", **parts: str) -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f"{before}<w:document {SPACE}><w:body>{body}</w:body></w:document>")
        archive.writestr("word/styles.xml", STYLES)
        for name, text in parts.items():
            archive.writestr(name.replace("__", "/") + ".xml", text)
    return packed.getvalue()


def test_paragraphs_headings_and_tables_are_read() -> None:
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Berth", "40 euros"))
    table = f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    body = paragraph("Before") + paragraph("Fees", "berschrift1") + paragraph("Per &amp; night") + table
    core = "<p xmlns:dc='d'><dc:title>Harbour</dc:title></p>"
    document = docx.load(make_docx(body, docProps__core=core), "name")
    assert document.title == "Harbour"
    assert document.text == "Before\n\nFees\n\nPer & night\n\nBerth | 40 euros"
    found = [(part.heading, document.text[part.start : part.end].strip()) for part in document.sections]
    assert found == [("", "Before"), ("Fees", "Per & night\n\nBerth | 40 euros")]


def test_entities_are_never_expanded() -> None:
    bomb = '<!DOCTYPE b [<!ENTITY a "aaaa"><!ENTITY c SYSTEM "file:///etc/passwd">]>'
    with pytest.raises(UnreadableFile, match="document type"):
        docx.load(make_docx(paragraph("&a;&c;"), before=bomb), "name")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xd0\xcf\x11\xe0 an encrypted one is no archive", "damaged or encrypted"),
        (make_docx(paragraph("text"))[:-30], "damaged or encrypted"),
        (make_docx("<w:p>"), "damaged"),
        (make_docx(""), "contains no text"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableFile, match=reason):
        docx.load(data, "name")
