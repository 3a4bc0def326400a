"""Files of questions: what they may say, and where in a store their answers are found."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from inference.embedding.registry import Embedders
from retrieval.ingest import ingest
from retrieval.quality import questions
from retrieval.quality.measures import Target
from retrieval.quality.questions import Line, Resolved, UnusableQuestions, read_questions, resolve
from retrieval.store import PassageStore


def write(folder: Path, *lines: object) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_lines_are_read_and_empty_ones_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "How hot?", "file": "tea.md"}, "", {"question": "Why?", "text": "because"})
    assert read_questions(path) == [Line(question="How hot?", file="tea.md"), Line(question="Why?", text="because")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "Invalid JSON"),
        ("[1]", "object"),
        ({"file": "a.md"}, "question: Field required"),
        ({"question": "", "file": "a.md"}, "question: String should have at least 1 character"),
        ({"question": "Why?"}, "name what should be found"),
        ({"question": "Why?", "file": "a", "file_id": "b"}, "not both"),
        ({"question": "Why?", "file": "a", "start": 5}, "start and end must be given together"),
        ({"question": "Why?", "file": "a", "start": 5, "end": 5}, "start must be smaller"),
        ({"question": "Why?", "text": "a", "start": 5, "end": 6}, "start and end are offsets in a file"),
        ({"question": "Why?", "file": "a", "answer": "b"}, "answer: Extra inputs"),
        ({"question": "Why?", "file": "a", "grade": 0}, "grade"),
        ({"question": 7, "file": "a"}, "question"),
        ('{"question": "\udcff"}'.encode("utf-8", "surrogateescape").decode("latin-1"), ""),
    ],
)
def test_a_line_that_says_nothing_usable_is_named(tmp_path: Path, line: object, reason: str) -> None:
    path = write(tmp_path, {"question": "How hot?", "file": "tea.md"}, line)
    with pytest.raises(UnusableQuestions, match=r"questions\.jsonl, line 2: ") as raised:
        read_questions(path)
    assert reason in str(raised.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(b'{"question": "\xff\xfe", "file": "a"}')
    with pytest.raises(UnusableQuestions, match="line 1"):
        read_questions(tmp_path / "q.jsonl")


def test_a_file_without_questions_or_with_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableQuestions, match="contains no question"):
        read_questions(write(tmp_path, "", " "))
    monkeypatch.setattr(questions, "LINES_MAX", 1)
    line = {"question": "Why?", "file": "a"}
    assert len(read_questions(write(tmp_path, line, ""))) == 1
    with pytest.raises(UnusableQuestions, match="more than 1 lines"):
        read_questions(write(tmp_path, line, line))
    monkeypatch.setattr(questions, "BYTES_MAX", 10)
    with pytest.raises(UnusableQuestions, match="larger than"):
        read_questions(write(tmp_path, line))


@pytest.fixture
async def shelf(tmp_path: Path, tenant_id: UUID, store: PassageStore, embedders: Embedders) -> dict[str, str]:
    """A store `shelf` with three files; their ids by name."""
    folder = tmp_path / "shelf"
    (folder / "deep").mkdir(parents=True)
    (folder / "tea.md").write_text("# Tea\n\nGreen tea is steeped\nat 70 degrees.\n\nBlack tea at 95 degrees.")
    (folder / "deep" / "coffee.md").write_text("# Coffee\n\nEspresso needs 93 degrees.")
    (folder / "milk.md").write_text("# Milk\n\nGreen tea is steeped at 70 degrees. Milk is not.")
    await ingest([folder], store_name="shelf", tenant_id=tenant_id, store=store, embedders=embedders)
    opened = await store.get(tenant_id, "shelf")
    return {name: file_id for file_id, name in (await store.filenames(tenant_id, opened.id)).items()}


async def resolved(store: PassageStore, tenant_id: UUID, *lines: Line) -> Resolved:
    opened = await store.get(tenant_id, "shelf")
    return await resolve(lines, tenant_id=tenant_id, store=store, store_id=opened.id)


async def test_a_text_is_found_whatever_its_white_space(
    store: PassageStore, tenant_id: UUID, shelf: dict[str, str]
) -> None:
    text = "Green tea is steeped at 70  degrees."
    [question] = (await resolved(store, tenant_id, Line(question="How hot?", file="tea.md", text=text))).questions
    [target] = question.targets
    content = (await store.file(tenant_id, shelf["tea.md"])).content
    assert target.file_id == shelf["tea.md"]
    assert content[target.start : target.end] == "Green tea is steeped\nat 70 degrees."


async def test_a_text_alone_is_looked_for_in_every_file(
    store: PassageStore, tenant_id: UUID, shelf: dict[str, str]
) -> None:
    [question] = (await resolved(store, tenant_id, Line(question="How hot?", text="steeped at 70"))).questions
    assert {target.file_id for target in question.targets} == {shelf["tea.md"], shelf["milk.md"]}


async def test_a_file_is_named_by_its_name_its_end_or_its_id(
    store: PassageStore, tenant_id: UUID, shelf: dict[str, str]
) -> None:
    coffee = shelf["deep/coffee.md"]
    for line in (
        Line(question="?", file="deep/coffee.md"),
        Line(question="?", file="coffee.md"),
        Line(question="?", file_id=coffee),
    ):
        [question] = (await resolved(store, tenant_id, line)).questions
        assert question.targets == (Target(coffee),)
    [question] = (
        await resolved(store, tenant_id, Line(question="?", file_id=coffee, start=3, end=9, grade=2.0))
    ).questions
    assert question.targets == (Target(coffee, 3, 9, 2.0),)


async def test_lines_of_one_question_belong_together(
    store: PassageStore, tenant_id: UUID, shelf: dict[str, str]
) -> None:
    lines = [Line(question="?", file="tea.md"), Line(question="!", file="milk.md"), Line(question="?", file="milk.md")]
    first, second = (await resolved(store, tenant_id, *lines)).questions
    assert first.targets == (Target(shelf["tea.md"]), Target(shelf["milk.md"]))
    assert second.targets == (Target(shelf["milk.md"]),)


@pytest.mark.usefixtures("shelf")
async def test_what_the_store_does_not_hold_is_said_and_the_rest_goes_on(
    store: PassageStore, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    theirs = await store.open(other_tenant_id, "shelf", embedding_model="m", dimensions=384)
    found = await resolved(
        store,
        tenant_id,
        Line(question="one", file="wine.md"),
        Line(question="two", file="tea.md", text="oolong"),
        Line(question="three", text="oolong"),
        Line(question="four", file="tea.md"),
        Line(question="five", text=" \n "),
    )
    assert [question.text for question in found.questions] == ["four"]
    assert found.errors == [
        "“one”: the store has no file wine.md",
        "“two”: the text does not occur in tea.md",
        "“three”: the text does not occur in the store",
        "“five”: the text does not occur in the store",
    ]
    # Another tenant's store of the same name knows none of these files.
    empty = await resolve(
        [Line(question="?", file="tea.md")], tenant_id=other_tenant_id, store=store, store_id=theirs.id
    )
    assert empty.questions == []
