"""The platform's own documentation, which fills its sample store: what newcomers ask about is read in training too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs"
WORDS_RANGE = (4, 24)  # of a sentence

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PARAGRAPHS = re.compile(r"\n\s*\n")
_NO_SENTENCES = ("|", "-", "#", "1.", "    ")
_END = re.compile(r"(?<=[.])\s+(?=[A-Z`])")


def own_documents(folder: Path = FOLDER) -> Iterator[tuple[str, list[str]]]:
    """Each section by the title that its passages have, with the whole sentences of its paragraphs."""
    for path in sorted(folder.glob("*.md")):
        title, *sections = re.split(r"^#+ ", _FENCE.sub("", path.read_text("utf-8")), flags=re.MULTILINE)[1:]
        name, _, text = title.partition("\n")
        for heading, body in [(name, text), *(section.split("\n", 1) for section in sections if "\n" in section)]:
            if found := list(_sentences(body)):
                yield name if heading == name else f"{name} > {heading}", found


def _sentences(body: str) -> Iterator[str]:
    for paragraph in _PARAGRAPHS.split(body):
        if not paragraph.lstrip("\n").startswith(_NO_SENTENCES):
            for sentence in _END.split(" ".join(paragraph.split())):
                fits = WORDS_RANGE[0] <= len(sentence.split()) <= WORDS_RANGE[1]
                if fits and sentence.endswith(".") and "](" not in sentence:
                    yield sentence
