"""Files that are small, and made to keep whoever reads them busy: what each of them once did is beside it. Large ones
are made by the test that reads them, not wherever tests are collected."""

from __future__ import annotations

import zlib
from pathlib import Path

from tests.retrieval.loaders.test_docx import make_docx

CALM = (Path("calm.md"), b"# Harbour\n\nShips enter the harbour at high tide.\n")

TABS_MAX = 32_767  # of one string in a PDF
TABS = 4 * TABS_MAX

# 2.7 MB of elements in each other, though all are closed: what ends within an object ends nothing outside it. Minutes,
# growing with the square.
ENDLESS = (Path("endless.html"), b"<div><object></div></object>" * 100_000)


def brackets() -> tuple[Path, bytes]:
    """200 KB, a heading of nothing but the beginnings of links: minutes."""
    return Path("brackets.md"), b"# " + b"[" * 200_000 + b"\n\ntext\n"


def nested() -> tuple[Path, bytes]:
    """58 KB that unpack to 60 MB of elements in each other: 2.8 GB."""
    return Path("nested.docx"), make_docx("<a>" * 20_000_000)


def titled() -> tuple[Path, bytes]:
    """88 KB whose title is told in many pieces: 48 MB, copied with each of them."""
    return Path("titled.docx"), make_docx("<w:p/>", docProps__core=f"<p><title>{'&amp;' * 12_000_000}</title></p>")


def gaps() -> tuple[Path, bytes]:
    """10 MB of nothing between two rows."""
    return Path("gaps.csv"), b"a,b\n1,2\n" + b"\n" * 9_000_000 + b"3,4\n"


def unbroken() -> tuple[Path, bytes]:
    """9 MB without a heading, once cut into passages in a time that grew with the square."""
    return Path("unbroken.md"), b"The port is 8080, and [a link](x) says so. Words go on.\n" * 160_000


def tabs() -> tuple[Path, bytes]:
    """725 bytes of white space that was taken for the end of a line again and again: half a minute."""
    shown = b" Tj ".join([b"(" + b"\\t" * TABS_MAX + b")"] * (TABS // TABS_MAX))
    return Path("tabs.pdf"), pdf_showing(b"BT /F 12 Tf 72 700 Td (berth) Tj " + shown + b" Tj (fee) Tj ET")


def pdf_showing(content: bytes) -> bytes:
    """One page, wide enough for whatever the content shows."""
    packed = zlib.compress(content, 9)
    objects = {
        1: b"<</Type/Catalog/Pages 2 0 R>>",
        2: b"<</Type/Pages/Count 1/Kids[10 0 R]>>",
        3: b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        10: b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9000000 800]/Resources<</Font<</F 3 0 R>>>>/Contents 11 0 R>>",
        11: b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(packed), packed),
    }
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % entry for entry in objects.items())
    return b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R>>\n%%EOF"
