"""Questions made of documents: what is asked for is there, and what asks is not."""

from __future__ import annotations

from pathlib import Path

from benchmarks.retrieval.corpora import Corpus, docstrings, faq, headings

LONG = "There are several ways to do that, and the first of them is the one that people forget. " * 3
POD = f"""=head1 NAME

perlfaq1 - General

=head2 How do I sort a C<list>?

{LONG}

=head2 Short one?

No.

=head1 AUTHOR

{LONG} Somebody.
"""
MODULE = f'''
class Kettle:
    """Heats water until it boils.

    {LONG}
    """

    def pour(self):
        """Pour."""

    def drain(self):
        """{LONG}"""
'''


def assert_answerable(corpus: Corpus) -> None:
    """Every answer stands in its file, and the question that it answers does not."""
    assert corpus.lines
    for line in corpus.lines:
        assert line.file and line.text
        assert line.text in corpus.files[line.file]
        assert f"# {line.question}" not in corpus.files[line.file]


def test_a_faq_becomes_questions_without_their_headings(tmp_path: Path) -> None:
    (tmp_path / "perlfaq1.pod").write_text(POD)
    (tmp_path / "perlre.pod").write_text("=head1 Names\n\nB<Bold C<code>> words.")
    (tmp_path / "perl5delta.pod").write_text("=head1 News")
    corpus = faq(tmp_path)
    assert_answerable(corpus)
    assert [line.question for line in corpus.lines] == ["How do I sort a list?"]
    assert set(corpus.files) == {"perlfaq1.md", "perlre.md"}
    assert corpus.files["perlre.md"] == "# Names\n\nBold code words."
    assert "sort" not in corpus.files["perlfaq1.md"]
    assert "## Short one?" in corpus.files["perlfaq1.md"]
    assert faq(tmp_path / "nowhere").lines == []


def test_a_docstring_is_asked_for_by_its_first_sentence(tmp_path: Path) -> None:
    (tmp_path / "kettle.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "kettle.py").write_text(MODULE)
    corpus = docstrings(tmp_path)
    assert_answerable(corpus)
    assert [line.question for line in corpus.lines] == ["Heats water until it boils."]
    assert list(corpus.files) == ["kettle.md"]
    assert "boils" not in corpus.files["kettle.md"]


def test_installed_packages_have_headings_to_ask_for() -> None:
    corpus = headings()
    assert_answerable(corpus)
    assert not [line.question for line in corpus.lines if any(map(str.isdigit, line.question))]


def test_the_same_questions_are_left_every_time() -> None:
    corpus = headings()
    assert corpus.thinned(3).lines == corpus.thinned(3).lines
    assert len(corpus.thinned(3).lines) == 3
    assert corpus.thinned(100_000) == corpus
