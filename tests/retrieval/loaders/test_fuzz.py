"""Whatever a file holds, it is read or refused within little work: pieces of the corpus, cut, repeated and spoilt.

The corpus holds what loaders look for and what once held them up; what a run finds is added to it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval.errors import UnreadableFile
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import BROKEN, LoaderPool
from tests.retrieval.loaders.hostile import pdf_showing
from tests.retrieval.loaders.test_docx import make_docx

CORPUS = {seed.name: seed.read_bytes() for seed in sorted((Path(__file__).parent / "corpus").iterdir())}
BYTES_MAX = 200_000  # enough that a time that grows with the square is seen
LITTLE = Limits(wall_s=60, cpu_s=5)  # a hundred times what such files need


@st.composite
def spoilt(draw: st.DrawFn, seed: bytes) -> bytes:
    """A part of the seed many times over, between others, and odd bytes."""

    def part(bytes_max: int) -> bytes:
        start = draw(st.integers(0, len(seed) - 1))
        return seed[start : start + draw(st.integers(1, bytes_max))]

    before, repeated, after = part(60), part(draw(st.sampled_from([1, 3, 10, 60]))), part(60)
    times = draw(st.integers(1, BYTES_MAX // len(repeated)) | st.just(BYTES_MAX // len(repeated)))
    return before + repeated * times + draw(st.binary(max_size=4)) + after


def packed(seed: str, content: bytes) -> tuple[Path, bytes]:
    """Parts of packed files are spoilt before they are packed."""
    kind = Path(seed).suffix
    if kind == ".xml":
        return Path("a.docx"), make_docx(content.decode("utf-8", "replace"))
    if kind == ".content":
        return Path("a.pdf"), pdf_showing(content)
    return Path(f"a{kind}"), content


@pytest.mark.parametrize("seed", CORPUS)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_any_file_is_read_or_refused_with_little_work(
    loaders: LoaderPool, seed: str, data: st.DataObject
) -> None:
    path, content = packed(seed, data.draw(spoilt(CORPUS[seed])))
    try:
        document, pieces = await loaders.read(path, content, LITTLE, owner="fuzz", split=True)
    except UnreadableFile as error:
        assert not str(error).startswith("takes")
        assert str(error) != BROKEN or path.suffix == ".pdf"  # its parser may break, for that it is apart
    else:
        assert document.text.strip()
        assert all(document.text[piece.start : piece.end].strip() for piece in pieces)
