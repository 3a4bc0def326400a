"""Plain English sentences out of the documentation that is installed on this machine, and the words they are made of.

No data set is needed or kept: manual pages, docstrings of Python's standard library, and texts under /usr/share/doc.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from training.own import own_documents
from training.roff import plain

MANUALS = Path("/usr/share/man")
DOCUMENTS = Path("/usr/share/doc")
MANUALS_MAX = 4500
FAMILY_MAX = 25  # pages of one program: git alone has hundreds
CHARS_MAX = 200_000  # of a file that are read
SENTENCES_MAX = 10  # of a document
WORDS_RANGE = (5, 28)  # of a sentence
SENTENCE_CHARS_MAX = 180
LETTERS_SHARE_MIN = 0.9
WORDS_MAX = 6000
WORD_COUNT_MIN = 4

_SENTENCE = re.compile(r"^[A-Z][A-Za-z0-9 ,;:'()/_%+-]+[.]$")
_END = re.compile(r"(?<=[.])\s+(?=[A-Z])")
_QUOTES = re.compile(r"[`\"]")
_WORD = re.compile(r"\b[a-z]{4,11}\b")
_SECTION = re.compile(r"\.\d\w*\.gz$")


class NoProse(Exception):
    """There is nothing to learn sentences from."""


@dataclass(frozen=True, slots=True)
class Prose:
    """`words` are frequent ones in lower case; `documents` are titles with their sentences. `own` are the platform's,
    which are never held out: the sample store has them."""

    words: Sequence[str]
    documents: Sequence[tuple[str, Sequence[str]]]
    own: Sequence[tuple[str, Sequence[str]]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Prose:
        """Raises NoProse, ValueError, OSError."""
        try:
            held = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise NoProse(f"{path} is not there: run `python -m training prose` first") from None
        documents, own = ([(title, told) for title, told in held[name]] for name in ("documents", "own"))
        return cls(held["words"], documents, own)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), ensure_ascii=False), "utf-8")

    @property
    def sentences(self) -> int:
        return sum(len(sentences) for _, sentences in self.documents)


def mined(texts: Iterable[tuple[str, str]], seed: int = 1) -> Prose:
    """Each sentence once, the documents in random order. Raises NoProse."""
    seen: set[str] = set()
    documents: list[tuple[str, Sequence[str]]] = []
    for title, text in texts:
        for found in _documents(text):
            fresh = [sentence for sentence in dict.fromkeys(found) if sentence not in seen]
            seen.update(fresh)
            documents += [(title, fresh)] if fresh else []
    if not documents:
        raise NoProse("no documentation on this machine has plain sentences: install manual pages")
    random.Random(seed).shuffle(documents)
    counts = Counter(chain.from_iterable(_WORD.findall(sentence) for _, found in documents for sentence in found))
    words = [word for word, n in counts.most_common(WORDS_MAX) if n >= WORD_COUNT_MIN]
    return Prose(words, documents, list(own_documents()))


def sentences(paragraph: str) -> Iterator[str]:
    """Those that are whole, of ordinary length, and mostly of letters."""
    for part in _END.split(" ".join(paragraph.split())):
        sentence = _QUOTES.sub("", part).strip()
        words, letters = len(sentence.split()), sum(c.isalpha() or c == " " for c in sentence)
        if (
            WORDS_RANGE[0] <= words <= WORDS_RANGE[1]
            and len(sentence) < SENTENCE_CHARS_MAX
            and _SENTENCE.match(sentence)
            and sentence.count("(") == sentence.count(")")
            and letters > LETTERS_SHARE_MIN * len(sentence)
        ):
            yield sentence


def installed() -> Iterator[tuple[str, str]]:
    """Title and text of the documentation on this machine, with progress shown."""
    yield from _manuals(sorted(MANUALS.glob("man[1578]/*.gz")))
    library = Path(sysconfig.get_path("stdlib"))
    modules = (path for path in sorted(library.rglob("*.py")) if _is_library(path.relative_to(library)))
    for path in tqdm(list(modules), desc="docstrings", unit=" files", disable=None):
        yield from _docstrings(path)
    notes = chain(DOCUMENTS.glob("*/README*"), DOCUMENTS.rglob("*.txt"), DOCUMENTS.rglob("*.txt.gz"))
    for path in tqdm(sorted(set(notes)), desc="documents", unit=" files", disable=None):
        if not re.search("copyright|LICEN", str(path)):
            yield path.relative_to(DOCUMENTS).parts[0], _text(path)


def _documents(text: str) -> Iterator[list[str]]:
    """Sentences that stand near each other, a few at a time."""
    near: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.lstrip().startswith("# "):
            near += sentences(paragraph)
        if len(near) > SENTENCES_MAX // 2:
            yield near[:SENTENCES_MAX]
            near = []
    if near:
        yield near


def _manuals(paths: list[Path]) -> Iterator[tuple[str, str]]:
    random.Random(1).shuffle(paths)
    families: Counter[str] = Counter()
    chosen = []
    for path in paths:
        family = re.split(r"[-_.]", path.name)[0]
        families[family] += 1
        chosen += [path] if families[family] <= FAMILY_MAX else []
    for path in tqdm(chosen[:MANUALS_MAX], desc="manuals", unit=" pages", disable=None):
        yield _SECTION.sub("", path.name), plain(_text(path))


def _is_library(path: Path) -> bool:
    return len(path.parts) <= 2 and not re.search("test|site-packages|dist-packages|idlelib", str(path))


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):  # templates, and what is written for other versions
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", path.stem), text


def _text(path: Path) -> str:
    """Its beginning; nothing of what cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(CHARS_MAX).decode("utf-8", "ignore")
    except (OSError, EOFError):
        return ""
