from __future__ import annotations

from pathlib import Path

import pytest

from training.own import own_documents
from training.prose import NoProse, Prose, mined, sentences
from training.roff import plain

PAGE = r""".\" a comment
.TH LS 1
.SH NAME
ls \- list directory contents
.PP
The command
.BR ls " (1)"
lists the \fBfiles\fR of a folder.
.TP
It\(aqs sorted by name as a rule.
"""


def test_a_manual_page_loses_its_markup() -> None:
    text = plain(PAGE)
    assert "# NAME" in text and "comment" not in text and "\\" not in text
    assert [sentence for paragraph in text.split("\n\n") for sentence in sentences(paragraph)] == [
        "The command ls(1) lists the files of a folder.",
        "It's sorted by name as a rule.",
    ]


@pytest.mark.parametrize(
    ("paragraph", "found"),
    [
        (
            "This is a whole\n  sentence of words. So is this one, of a kind.",
            ["This is a whole sentence of words.", "So is this one, of a kind."],
        ),
        ("Too short. And a fragment without an end", []),
        ("The option x=7 & y=8 {a} is not plain text at all.", []),
        ("Values 12 34 56 78 90 12 34 56 are mostly digits.", []),
        ("An open ( bracket is left in this sentence here.", []),
        ("The ``name'' of a \"thing\" loses its marks here.", ["The name'' of a thing loses its marks here."]),
        ("Word " * 40 + "end.", []),
    ],
)
def test_whole_plain_sentences_are_taken(paragraph: str, found: list[str]) -> None:
    assert list(sentences(paragraph)) == found


def test_each_sentence_is_kept_once_with_a_title_beside_it() -> None:
    text = "The folder holds files of many kinds. Every folder has files in it."
    prose = mined([("ls", text), ("copy", text + " Files of a folder are copied here.")])
    assert sorted(prose.documents) == [
        ("copy", ["Files of a folder are copied here."]),
        ("ls", ["The folder holds files of many kinds.", "Every folder has files in it."]),
    ]
    assert prose.sentences == 3


def test_frequent_words_are_kept() -> None:
    texts = [(str(n), f"The folder number {'abcdef'[n]} holds many files today.") for n in range(5)]
    assert set(mined(texts).words) == {"folder", "number", "holds", "many", "files", "today"}
    assert mined(texts[:3]).words == []


def test_prose_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "prose.json"
    prose = Prose(["folder"], [("ls", ["The folder holds files of many kinds."])])
    prose.write(path)
    assert Prose.read(path) == prose


def test_prose_that_was_not_mined_yet_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(NoProse, match="run `python -m training prose` first"):
        Prose.read(tmp_path / "prose.json")


def test_a_machine_without_documentation_is_said_to_be_so() -> None:
    with pytest.raises(NoProse, match="install manual pages"):
        mined([])


def test_the_platforms_own_documentation_is_read_by_its_sections() -> None:
    own = dict(own_documents())
    assert "for seven days by default" in " ".join(own["Operations > Traces"])
    assert not [sentence for told in own.values() for sentence in told if not sentence.endswith(".")]
