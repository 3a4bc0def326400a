"""A whole evaluation over the project's own documents, with the bundled embedder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from inference.bundled import EMBEDDER
from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from retrieval.config import RetrievalConfig
from retrieval.ingest import ingest
from retrieval.quality.evaluate import (
    RANKINGS,
    STAGES,
    Evaluation,
    as_dict,
    evaluate,
    markdown,
    quality_table,
    stage_table,
)
from retrieval.quality.questions import Line, Question, resolve
from retrieval.retriever import Retriever
from retrieval.store import PassageStore
from tests.retrieval.patience import patient

FACTS = {
    "tea.md": ("How hot is the water for green tea?", "Green tea is steeped at 70 degrees."),
    "bread.md": ("How long does the dough rest?", "The dough rests for eleven hours in the fridge."),
    "boat.md": ("Who repairs the sails?", "Torn sails are mended by the harbour's tailor."),
}


@pytest.fixture
async def asked(tmp_path: Path, tenant_id: UUID, store: PassageStore, embedders: Embedders) -> list[Question]:
    """Questions about the store `shelf`; nothing answers the last one of them."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name, (_, answer) in FACTS.items():
        (folder / name).write_text(f"# {name.partition('.')[0].title()}\n\n{answer}")
    (folder / "cheese.md").write_text("# Zebra\n\nQuokkas sleep.")
    report = await ingest([folder], store_name="shelf", tenant_id=tenant_id, store=store, embedders=embedders)
    lines = [Line(question=question, file=name, text=answer) for name, (question, answer) in FACTS.items()]
    lines.append(Line(question="How hot is the water for white tea?", file="cheese.md"))
    return (await resolve(lines, tenant_id=tenant_id, store=store, store_id=report.store.id)).questions


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Embedders]:
    """Keeps no query, so it always takes its time."""
    embedder = Embedder.load(EMBEDDER, queries_bytes_max=0)
    yield Embedders(embedder)
    embedder.close()


async def run(
    store: PassageStore,
    embedders: Embedders,
    tenant_id: UUID,
    questions: list[Question],
    config: RetrievalConfig | None = None,
) -> Evaluation:
    steps: list[int] = []
    evaluation = await evaluate(
        questions,
        Retriever(store, embedders, config or patient()),
        tenant_id=tenant_id,
        store="shelf",
        limit=2,
        score_threshold=0.0,
        progress=steps.append,
    )
    assert sum(steps) == len(questions)
    return evaluation


async def test_every_ranking_and_every_stage_is_measured(
    store: PassageStore, embedders: Embedders, tenant_id: UUID, asked: list[Question]
) -> None:
    evaluation = await run(store, embedders, tenant_id, asked)
    assert [len(evaluation.judgements[ranking]) for ranking in RANKINGS] == [4] * 5
    assert all(len(evaluation.stage_ms[stage]) == 4 for stage in STAGES)
    for ranking in ("vectors alone", "reranked"):
        assert [j.reciprocal_rank for j in evaluation.judgements[ranking]][:3] == [1.0, 1.0, 1.0]
    assert evaluation.missed == [3]
    assert evaluation.skipped == 0
    assert all(len(passages) <= 2 for passages in evaluation.passages)
    told = as_dict(evaluation)
    assert told["rankings"]["reranked"]["mrr@10"] >= 0.75
    assert told["questions"] == 4 and told["stages_skipped"] == 0
    for ranking in RANKINGS:
        assert f"| {ranking}" in quality_table(evaluation)
    for stage in STAGES:
        assert f"| {stage}" in stage_table(evaluation)


async def test_words_alone_do_not_know_of_vectors(
    store: PassageStore, embedders: Embedders, forgetful: Embedders, tenant_id: UUID, asked: list[Question]
) -> None:
    """What words alone would find is what is found when nothing can be embedded in time."""
    evaluation = await run(store, embedders, tenant_id, asked)
    unembedded = await run(store, forgetful, tenant_id, asked, patient(embed_ms=0))
    assert unembedded.judgements["words alone"] == evaluation.judgements["words alone"]
    assert unembedded.judgements["fused"] == evaluation.judgements["words alone"]


async def test_a_stage_that_was_skipped_is_counted_and_its_times_are_not_summed(
    store: PassageStore, forgetful: Embedders, tenant_id: UUID, asked: list[Question]
) -> None:
    evaluation = await run(store, forgetful, tenant_id, asked, patient(embed_ms=0))
    assert evaluation.skipped == 4
    assert evaluation.qualities["vectors alone"].mrr == 0.0
    fused = next(line for line in quality_table(evaluation).splitlines() if line.startswith("| fused"))
    assert [cell.strip() for cell in fused.split("|")][-3:] == ["", "", ""]


def test_a_table_has_columns_of_equal_width() -> None:
    assert markdown([["", "n"], ["words", "1"]]) == "|       | n |\n|-------|---|\n| words | 1 |"
