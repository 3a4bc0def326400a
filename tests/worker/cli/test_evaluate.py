"""`firsttoken eval retrieval` as people and programs run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from migrations.embedded import EmbeddedPostgres
from tests.worker.cli.test_main import complaint, firsttoken


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A home with the store `drinks` of two tenants: only that of `local` knows of tea."""
    home = make_home()
    with EmbeddedPostgres(home):  # each command would start and stop it
        for tenant, text in (("local", "Green tea is steeped at 70 degrees."), ("other", "Juice is pressed.")):
            folder = tmp_path_factory.mktemp(tenant)
            (folder / "drinks.md").write_text(f"# Drinks\n\n{text}")
            done = firsttoken("ingest", str(folder), "--store", "drinks", "--home", str(home), "--tenant", tenant)
            assert done.returncode == 0, done.stderr
        yield str(home)


def ask(tmp_path: Path, home: str, *lines: Mapping[str, object], options: tuple[str, ...] = ()) -> tuple[str, ...]:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return ("eval", "retrieval", "--store", "drinks", "--questions", str(path), "--home", home, *options)


TEA = {"question": "How hot is the water for green tea?", "file": "drinks.md", "text": "steeped at 70 degrees"}


def test_a_store_is_measured_for_people_and_for_programs(home: str, tmp_path: Path) -> None:
    done = firsttoken(*ask(tmp_path, home, TEA))
    assert done.returncode == 0, done.stderr
    for part in (
        "vectors alone",
        "words alone",
        "reranked",
        "MRR@10",
        "embed",
        "1 questions",
        "0 questions whose answer",
    ):
        assert part in done.stdout
    report = json.loads(firsttoken(*ask(tmp_path, home, TEA, options=("--json",))).stdout)
    assert report["rankings"]["given to the model"]["mrr@10"] == 1.0
    assert (report["missed"], report["unresolved"], report["stages_skipped"]) == ([], [], 0)


def test_what_is_not_found_is_named(home: str, tmp_path: Path) -> None:
    done = firsttoken(*ask(tmp_path, home, TEA, options=("--score-threshold", "1")))
    assert "1 questions whose answer was not in the passages" in done.stdout
    assert "  How hot is the water for green tea?" in done.stdout
    assert "there is no tenant othre" in complaint(*ask(tmp_path, home, TEA, options=("--tenant", "othre")))


def test_a_question_about_something_else_is_reported_after_the_rest(home: str, tmp_path: Path) -> None:
    done = firsttoken(*ask(tmp_path, home, TEA, {"question": "And wine?", "file": "wine.md"}))
    assert done.returncode == 1
    assert "MRR@10" in done.stdout
    assert "“And wine?”: the store has no file wine.md" in done.stderr
    assert "1 of 2 lines match nothing in store drinks" in done.stderr.splitlines()[-1]


def test_another_tenants_store_is_another_store(home: str, tmp_path: Path) -> None:
    line = complaint(*ask(tmp_path, home, TEA, options=("--tenant", "other")))
    assert "the text does not occur in drinks.md" in line


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--limit", "0"), "--limit must be from 1 to 50"),
        (("--score-threshold", "1.5"), "--score-threshold must be from 0 to 1"),
        (("--store", "nothing"), "no vector store 'nothing'"),
        (("--questions", "/nowhere.jsonl"), "No such file"),
        (("--questions", __file__), "line 1: Invalid JSON"),
    ],
)
def test_what_cannot_be_asked_is_one_line(home: str, tmp_path: Path, options: tuple[str, str], what: str) -> None:
    assert what in complaint(*ask(tmp_path, home, TEA, options=options))
