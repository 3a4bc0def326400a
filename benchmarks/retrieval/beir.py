"""Test collections in the format of BEIR (Thakur et al., 2021): corpus.jsonl, queries.jsonl and qrels/*.tsv."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.retrieval.corpora import Corpus
from retrieval.quality.questions import QUESTION_CHARS_MAX, Line

SPLITS = ("test", "dev", "train")  # the first that exists


def beir(folder: Path) -> Corpus:
    """Read a collection; each text of the corpus becomes a file. Raises OSError, ValueError (invalid JSON) or KeyError
    (a missing field)."""
    names = {}
    files = {}
    for number, text in enumerate(_objects(folder / "corpus.jsonl")):
        names[text["_id"]] = name = f"{number}.md"
        title = text.get("title", "")
        files[name] = f"# {title}\n\n{text['text']}" if title else text["text"]
    queries = {query["_id"]: query["text"][:QUESTION_CHARS_MAX] for query in _objects(folder / "queries.jsonl")}
    lines = [
        Line(question=queries[query], file=names[text], grade=float(grade))
        for query, text, grade in _judgements(folder / "qrels")
        if query in queries and text in names and float(grade) > 0
    ]
    return Corpus(folder.name, files, lines, by_file=True)


def _judgements(folder: Path) -> Iterator[tuple[str, str, str]]:
    path = next(path for split in SPLITS if (path := folder / f"{split}.tsv").exists())
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t")
        next(rows)  # the header
        yield from ((query, text, grade) for query, text, grade in rows)


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())
