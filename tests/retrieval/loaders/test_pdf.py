from __future__ import annotations

import pytest

from retrieval.errors import UnreadableFile
from retrieval.loaders import pdf

LOCKED = f"/Encrypt<</Filter/Standard/V 1/R 2/O<{'5a' * 32}>/U<{'a5' * 32}>/P -4>>/ID[<{'11' * 16}><{'11' * 16}>]"


def make_pdf(*pages: str, trailer: str = "") -> bytes:
    """The smallest file that shows one line of text a page; readers find the objects without a table of them."""
    kids = " ".join(f"{10 + 2 * n} 0 R" for n in range(len(pages)))
    objects = {
        1: "<</Type/Catalog/Pages 2 0 R>>",
        2: f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>",
        3: "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        4: "<</Title(Harbour rules)>>",
    }
    for n, text in enumerate(pages):
        stream = f"BT /F 12 Tf 72 700 Td ({text}) Tj ET"
        objects[10 + 2 * n] = (
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]"
            f"/Resources<</Font<</F 3 0 R>>>>/Contents {11 + 2 * n} 0 R>>"
        )
        objects[11 + 2 * n] = f"<</Length {len(stream)}>>stream\n{stream}\nendstream"
    body = "".join(f"{number} 0 obj\n{text}\nendobj\n" for number, text in objects.items())
    return f"%PDF-1.4\n{body}trailer<</Root 1 0 R/Info 4 0 R{trailer}>>\n%%EOF".encode()


def test_every_page_is_a_section() -> None:
    document = pdf.load(make_pdf("A berth costs 40 euros.", "", "Dogs are welcome."), "name")
    assert document.title == "Harbour rules"
    found = [(part.heading, document.text[part.start : part.end]) for part in document.sections]
    assert found == [("Page 1", "A berth costs 40 euros."), ("Page 3", "Dogs are welcome.")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello", "is not a PDF"),
        (make_pdf("x")[:40], "is not a PDF"),
        (make_pdf(""), "contains no text"),
        (make_pdf("x", trailer=LOCKED), "is encrypted; save it without a password"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableFile, match=reason) as caught:
        pdf.load(data, "name")
    assert not str(caught.value).endswith(".")  # it becomes a sentence where it is told
