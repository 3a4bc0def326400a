from __future__ import annotations

import pytest

from retrieval.errors import UnreadableFile
from retrieval.loaders import table


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_every_value_stands_behind_its_column(delimiter: str) -> None:
    rows = [["berth", "price", ""], ["A1", "40 euros", "quiet"], ["", "", ""], ["B2", "", ""]]
    source = "\r\n".join(delimiter.join(row) for row in rows)
    assert table.load(source.encode(), "prices").text == "berth: A1; price: 40 euros; quiet\nberth: B2"


def test_a_value_may_go_over_lines() -> None:
    assert table.load(b'name,note\nA,"one\ntwo, three"\n', "x").text == "name: A; note: one two, three"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"only,columns\n", "no rows"),
        (b'a,b\n1,"never closed', "not a table"),
        (b"a," * 300 + b"\n1", "more than 200 columns"),
        (b"a\n" + b"x" * 200_000, "not a table"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableFile, match=reason):
        table.load(data, "x")
