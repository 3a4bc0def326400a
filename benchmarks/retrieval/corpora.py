"""Test collections made from text on this machine: documents to ingest, and questions with known answers.

No model wrote these questions. They are of three kinds:

- faq: a question that people ask about Perl; the answer is the section on it (needs the POD files of perl-doc);
- docstrings: the first sentence of a docstring in Python's library; the answer is the rest of it;
- headings: the heading of a section in the description of an installed package; the answer is the section.

The text of a question is removed from the documents, so that no answer is found by the wording of its question.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from random import Random

from retrieval.loaders import formats
from retrieval.quality.questions import Line

CHARS_MAX = 800_000  # per collection: some 1,500 chunks, which one core embeds in a minute and a half
QUESTIONS_MAX = 300
ANSWER_CHARS_MIN, ANSWER_CHARS_MAX = 200, 6000  # shorter ones have no content, longer ones are chapters
QUESTION_WORDS_MIN, TITLE_CHARS_MAX = 4, 200
HEADING_WORDS_MIN = 3  # "Usage" is a heading of every package
PODS = Path("/usr/share/perl")
_HEADING = re.compile(r"\s*(#{1,6}) +([^\n]+?) *#* *\n?")
_POD_MARK = re.compile(r"[BCEFILSXZ](?:<< (.*?) >>|<([^<>]*)>)")


@dataclass(frozen=True, slots=True)
class Corpus:
    name: str
    files: dict[str, str] = field(default_factory=dict)  # Markdown, by file name
    lines: list[Line] = field(default_factory=list)

    @property
    def chars(self) -> int:
        return sum(map(len, self.files.values()))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, "utf-8")

    def thinned(self, questions_max: int) -> Corpus:
        """The corpus with at most `questions_max` questions, the same ones every time."""
        lines = self.lines
        if len(lines) > questions_max:
            lines = Random(0).sample(lines, questions_max)
        return replace(self, lines=lines)


def corpora(pods: Path = PODS) -> Iterator[Corpus]:
    """The collections for which this machine has the text."""
    for corpus in (faq(pods), docstrings(Path(sysconfig.get_paths()["stdlib"])), headings()):
        if corpus.lines:
            yield corpus.thinned(QUESTIONS_MAX)


def faq(folder: Path) -> Corpus:
    """The Perl FAQ, among the rest of Perl's documentation."""
    corpus = Corpus("faq")
    pods = {path.stem: path for path in sorted(folder.rglob("perl*.pod")) if "delta" not in path.stem}
    asked = [path for name, path in pods.items() if re.fullmatch(r"perlfaq\d", name)]
    others = [path for name, path in pods.items() if "faq" not in name and name != "perltoc"]
    for path in asked:
        text = _markdown(path.read_text("utf-8", "replace"))
        _add_sections(corpus, f"{path.stem}.md", text, lambda heading: heading.endswith("?"))
    for path in Random(0).sample(others, len(others)) if asked else ():
        if corpus.chars < CHARS_MAX:
            corpus.files[f"{path.stem}.md"] = _markdown(path.read_text("utf-8", "replace"))
    return corpus


def headings() -> Corpus:
    """The descriptions of installed packages, as published by their authors."""
    corpus = Corpus("headings")
    for package in sorted(metadata.distributions(), key=lambda d: d.name):
        text = package.metadata.json.get("description", "")
        if isinstance(text, str) and len(text) > ANSWER_CHARS_MIN and corpus.chars < CHARS_MAX:
            _add_sections(corpus, f"{package.name}.md", text, _tells)
    return corpus


def docstrings(folder: Path) -> Corpus:
    """One document per module, one section per class or function."""
    corpus = Corpus("docstrings")
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(parts) or corpus.chars > CHARS_MAX:
            continue
        module = ".".join(parts)
        sections = []
        for name, text in _docstrings(path):
            first, _, rest = text.partition("\n\n")
            question, answer = " ".join(first.split()), rest.strip()
            if _asks(question) and _answers(answer):
                sections.append(f"## {name}\n\n{answer}\n")
                corpus.lines.append(Line(question=question, file=f"{module}.md", text=answer))
        if sections:
            corpus.files[f"{module}.md"] = "\n".join([f"# {module}\n", *sections])
    return corpus


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(path.read_text("utf-8", "replace"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.name, text


def _tells(heading: str) -> bool:
    return len(heading.split()) >= HEADING_WORDS_MIN and not any(map(str.isdigit, heading))  # no release notes


def _asks(question: str) -> bool:
    return len(question) <= TITLE_CHARS_MAX and len(question.split()) >= QUESTION_WORDS_MIN


def _answers(answer: str) -> bool:
    return ANSWER_CHARS_MIN <= len(answer) <= ANSWER_CHARS_MAX


def _add_sections(corpus: Corpus, name: str, text: str, is_question: Callable[[str], bool]) -> None:
    """Add a text by sections. Where a heading is a question, it is replaced by a number."""
    parts: list[str] = []
    end = 0
    for number, section in enumerate(formats.load(Path(name), text.encode()).sections, 1):
        above, body = text[end : section.start], text[section.start : section.end]
        heading = _HEADING.fullmatch(above)
        if heading and is_question(heading[2]) and _answers(body.strip()):
            above = f"{heading[1]} Part {number}\n"
            corpus.lines.append(Line(question=heading[2], file=name, text=body.strip()))
        parts += [above, body]
        end = section.end
    corpus.files[name] = "".join(parts)


def _markdown(pod: str) -> str:
    """POD as Markdown: headings and paragraphs, without inline markup."""
    lines = []
    for line in pod.splitlines():
        if heading := re.match(r"=head([1-4])\s+(.*)", line):
            lines.append("#" * int(heading[1]) + " " + heading[2])
        elif item := re.match(r"=item\s+(.*)", line):
            lines.append(item[1])
        elif not line.startswith("="):
            lines.append(line)
    text = "\n".join(lines)
    while (stripped := _POD_MARK.sub(r"\1\2", text)) != text:
        text = stripped
    return text
