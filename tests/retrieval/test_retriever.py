from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import numpy as np
import pytest
from numpy.typing import NDArray

from inference.embedding.registry import Embedders
from inference.trace import Span, Trace, now_ns
from retrieval.config import SCORE_THRESHOLD, RetrievalConfig
from retrieval.errors import StoreNotFound
from retrieval.filter import Comparison
from retrieval.ingest import ingest
from retrieval.passage import Passage
from retrieval.query import Query
from retrieval.rank import Reranker
from retrieval.retriever import Question, Retriever
from retrieval.store import PassageStore
from tests.retrieval.patience import patient

DOCS = Path(__file__).parents[2] / "docs"
# Those that are asked about, and as many others; all of them are asked in tests/worker/cli/test_suite_command.py.
READ = ("clients.md", "documents.md", "hardware.md", "operations.md", "quick-start.md", "tools.md")
READ_CHARS = 6500  # of each, in which all answers are: a page takes a third of a second of the processor
STAGES = ["open", "embed", "search", "fuse", "rerank", "read", "compress"]

RELEVANT = {
    "How do I create an API key?": "create",
    "which tools are built in?": "calculator",
    "how are sources cited?": "citation",
    "What does the ops page show?": "ops",
    "How do I use the openai python client?": "openai",
    "Does it support GPUs?": "supports gpus",
    "Which cpus does it run on?": "runs on cpus",
}
IRRELEVANT = ["hello", "what is 12*7", "thanks!", "tell me a joke", "convert 5 miles to km", "Who won the world cup?"]


@pytest.fixture(scope="module")
async def reader(
    store: PassageStore, embedders: Embedders, owner_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> UUID:
    """A tenant with some of the project's own documentation in the store "docs"; nobody changes it."""
    connection = await asyncpg.connect(owner_dsn)
    tenant_id: UUID = await connection.fetchval("select ensure_tenant('reader of the docs')")
    await connection.close()
    folder = tmp_path_factory.mktemp("docs")
    for name in READ:
        (folder / name).write_text((DOCS / name).read_text("utf-8")[:READ_CHARS], "utf-8")
    await ingest([folder], store_name="docs", tenant_id=tenant_id, store=store, embedders=embedders)
    return tenant_id


async def retrieve(
    store: PassageStore,
    embedders: Embedders,
    tenant_id: UUID,
    query: str,
    *,
    config: RetrievalConfig | None = None,
    stores: tuple[str, ...] = ("docs",),
    score_threshold: float = SCORE_THRESHOLD,
    limit: int = 5,
    reranker: Reranker | None = None,
) -> tuple[list[Passage], Trace]:
    trace = Trace()
    asked = Query(tenant_id, query, stores, limit, score_threshold)
    passages = await Retriever(store, embedders, config or patient(), reranker).retrieve(asked, trace)
    trace.finish()
    return passages, trace


def spans(trace: Trace) -> dict[str, Span]:
    return {span.name: span for span in trace.spans}


async def test_questions_find_their_passage_and_other_talk_finds_none(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    for query, word in RELEVANT.items():
        passages, _ = await retrieve(store, embedders, reader, query)
        assert passages, query
        assert word in f"{passages[0].title} {passages[0].text}".lower(), query
        assert [passage.score for passage in passages] == sorted((p.score for p in passages), reverse=True)
        assert all(SCORE_THRESHOLD <= passage.score <= 1 for passage in passages)
    for query in IRRELEVANT:
        passages, trace = await retrieve(store, embedders, reader, query)
        assert not passages, query
        best_score = trace.spans[0].attributes["best_score"]
        assert isinstance(best_score, float) and 0 < best_score < SCORE_THRESHOLD
        assert "read" not in spans(trace), "texts that are thrown away were waited for"


async def test_every_stage_is_a_span_below_retrieve(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    passages, trace = await retrieve(store, embedders, reader, "How do I create an API key?")
    retrieval, *stages = trace.spans
    assert (retrieval.name, retrieval.lane, retrieval.parent) == ("retrieve", "main", None)
    assert retrieval.attributes == {"stores": 1, "passages": len(passages), "best_score": passages[0].score}
    assert [stage.name for stage in stages] == STAGES
    for stage in stages:
        assert (stage.lane, stage.parent) == ("retrieval", 0)
        assert retrieval.start_ns <= stage.start_ns <= stage.end_ns <= retrieval.end_ns
    found = spans(trace)
    assert found["search"].attributes["candidates"] == found["fuse"].attributes["candidates"]
    assert found["compress"].attributes["passages"] == len(passages)
    assert found["compress"].attributes["tokens"] == sum(passage.tokens for passage in passages)


async def test_asking_again_does_not_embed_again(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    query = "What is asked here for the first time?"
    for cached in (False, True):
        _, trace = await retrieve(store, embedders, reader, query)
        assert spans(trace)["embed"].attributes["cached"] is cached


async def test_without_the_embedding_words_still_find_something(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    query = "The calculator!"
    passages, trace = await retrieve(store, embedders, reader, query, config=patient(embed_ms=0))
    assert spans(trace)["embed"].attributes["skipped"] == "over budget"
    assert "rerank" not in spans(trace)
    assert "calculator" in passages[0].text.lower()


async def test_a_search_that_is_short_of_time_leaves_stages_out(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    trace = Trace()
    asked = Query(reader, "Which tools are built in?", ("docs",), 5, 0.0)
    passages = await Retriever(store, embedders, patient()).retrieve(asked, trace, budget_ms=0.0)
    assert passages == []
    assert spans(trace)["open"].attributes["skipped"] == "over budget"
    assert "error.type" not in trace.spans[0].attributes


def test_each_stage_leaves_half_of_the_time_to_those_behind_it() -> None:
    question = Question(uuid4(), "x", None, Trace(), None, until_ns=now_ns() + 100e9)
    assert 20_000 < question.allowed_ms(90_000) <= 50_000
    assert 50_000 < question.allowed_ms(200_000, last=True) <= 100_000
    assert question.allowed_ms(10) == 10
    over = Question(uuid4(), "x", None, Trace(), None, until_ns=now_ns() - 1)
    assert over.allowed_ms(10) == over.allowed_ms(10, last=True) == 0


async def test_without_a_search_there_are_no_passages_and_no_error(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    passages, trace = await retrieve(store, embedders, reader, "which tools are built in?", config=patient(search_ms=0))
    assert passages == []
    assert spans(trace)["search"].attributes["skipped"] == "over budget"
    assert "error.type" not in trace.spans[0].attributes


async def test_without_the_texts_there_are_no_passages_and_no_error(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    passages, trace = await retrieve(store, embedders, reader, "which tools are built in?", config=patient(read_ms=0))
    assert passages == []
    assert spans(trace)["read"].attributes["skipped"] == "over budget"
    assert "error.type" not in trace.spans[0].attributes


async def test_texts_are_read_of_the_best_alone(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    few = patient(read_min=1, read_share=1)
    _, trace = await retrieve(store, embedders, reader, "which tools are built in?", config=few)
    told = spans(trace)["read"].attributes
    assert 0 != told["read"] != told["candidates"]


async def test_without_reranking_the_fused_order_stands(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    query = "which tools are built in?"
    passages, trace = await retrieve(store, embedders, reader, query, config=patient(rerank_ms=0))
    assert spans(trace)["rerank"].attributes["skipped"] == "over budget"
    weightless, _ = await retrieve(store, embedders, reader, query, config=patient(window_weight=0))
    assert [(p.title, p.score) for p in passages] == [(p.title, p.score) for p in weightless]
    reranked, trace = await retrieve(store, embedders, reader, query)
    assert "skipped" not in spans(trace)["rerank"].attributes
    assert reranked[0].score != passages[0].score


async def test_several_stores_are_searched_by_name_and_by_id_and_a_passage_comes_once(
    store: PassageStore, embedders: Embedders, tenant_id: UUID, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.md").write_text(f"The harbour opens at six.\n\n# More\n\nOnly {name} says this of piers.")
        await ingest([tmp_path / f"{name}.md"], store_name=name, tenant_id=tenant_id, store=store, embedders=embedders)
    both = ("one", (await store.get(tenant_id, "two")).id, "one")
    passages, trace = await retrieve(
        store, embedders, tenant_id, "harbour piers", stores=both, score_threshold=0.0, limit=9
    )
    assert sorted(passage.text.split()[1] for passage in passages) == ["harbour", "one", "two"]
    assert spans(trace)["compress"].attributes["repeated"] == 1


async def test_an_unknown_store_is_refused_by_name(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    with pytest.raises(StoreNotFound, match="'atlantis'") as caught:
        await retrieve(store, embedders, reader, "anything", stores=("docs", "atlantis"))
    assert (caught.value.status, caught.value.store) == (404, "atlantis")


@pytest.mark.usefixtures("reader")
async def test_another_tenants_store_is_unknown(store: PassageStore, embedders: Embedders, tenant_id: UUID) -> None:
    with pytest.raises(StoreNotFound):
        await retrieve(store, embedders, tenant_id, "which tools are built in?")


@pytest.mark.parametrize("query", ["", " \n", "\0", "'; drop table chunks; --", "half \ud83d", "x " * 50_000, "日本語"])
async def test_any_query_is_taken(store: PassageStore, embedders: Embedders, reader: UUID, query: str) -> None:
    passages, _ = await retrieve(store, embedders, reader, query, score_threshold=0.0)
    assert len(passages) <= 5


async def test_a_store_without_files_gives_nothing(store: PassageStore, embedders: Embedders, tenant_id: UUID) -> None:
    await store.open(tenant_id, "docs", embedding_model=embedders.default.name, dimensions=embedders.default.dimensions)
    passages, _ = await retrieve(store, embedders, tenant_id, "which tools are built in?", score_threshold=0.0)
    assert passages == []


async def test_passages_keep_within_their_tokens(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    passages, trace = await retrieve(
        store,
        embedders,
        reader,
        "which tools are built in?",
        config=patient(passage_tokens_max=100, best_share_min=0.0),
        score_threshold=0.0,
    )
    assert 0 < sum(passage.tokens for passage in passages) <= 100
    assert spans(trace)["compress"].attributes["over_tokens"] != 0


async def test_passages_far_behind_the_best_are_left_out(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    question = "which tools are built in?"
    everything = patient(best_share_min=0.0)
    all_passages, _ = await retrieve(store, embedders, reader, question, config=everything, score_threshold=0.0)
    passages, _ = await retrieve(store, embedders, reader, question, score_threshold=0.0)
    share = patient().best_share_min
    assert passages == [p for p in all_passages if p.score >= share * all_passages[0].score]
    assert 0 < len(passages) < len(all_passages)


async def test_passages_are_cut_to_the_sentences_that_matter(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    question = "What is the default wall clock budget?"
    uncut, _ = await retrieve(store, embedders, reader, question, config=patient(sentence_share_min=-99))
    passages, trace = await retrieve(store, embedders, reader, question)
    assert "120 seconds" in passages[0].text
    assert passages[0].text in uncut[0].text
    assert passages[0].tokens < uncut[0].tokens
    assert spans(trace)["compress"].attributes["cut"] != 0
    for passage in passages:
        file = await store.file(reader, passage.file_id)
        assert file.content[passage.start_char : passage.end_char] == passage.text


async def test_hits_that_follow_each_other_come_as_one_passage(
    store: PassageStore, embedders: Embedders, tenant_id: UUID, tmp_path: Path
) -> None:
    sentences = [f"The harbour of pier {n} opens at {n} and closes for the ships at {n + 9}." for n in range(30)]
    (tmp_path / "harbour.md").write_text("# Harbour\n\n" + "\n\n".join(sentences))
    await ingest([tmp_path], store_name="docs", tenant_id=tenant_id, store=store, embedders=embedders)
    uncut = patient(sentence_share_min=-99)
    question = "When does the harbour open?"
    passages, trace = await retrieve(store, embedders, tenant_id, question, config=uncut, limit=9, score_threshold=0)
    assert len(passages) == 1
    assert spans(trace)["compress"].attributes["joined"] != 0
    file = await store.file(tenant_id, passages[0].file_id)
    assert file.content[passages[0].start_char : passages[0].end_char] == passages[0].text
    apart = patient(sentence_share_min=-99, join_ms=0)
    passages, _ = await retrieve(store, embedders, tenant_id, question, config=apart, limit=9, score_threshold=0)
    assert len(passages) > 1


async def test_a_filter_reaches_the_search(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    trace = Trace()
    latin = Comparison(type="eq", key="language", value="Latin")
    asked = Query(reader, "which tools are built in?", ("docs",), 5, 0, latin)
    found = await Retriever(store, embedders, patient()).retrieve(asked, trace)
    assert found == []
    assert spans(trace)["search"].attributes["chunks"] == 0


class Reversing:
    """A reranker that finds the last of the first three best, after a while."""

    name = "reversing"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def score(self, query: str, texts: Sequence[str], budget_ms: float) -> NDArray[np.float64]:
        await asyncio.sleep(self.seconds)
        return np.arange(3.0)


async def test_all_models_of_a_question_have_computed_something_before_the_first(
    store: PassageStore, embedders: Embedders, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    monkeypatch.setattr(store, "warm_up", noted("store", computed))
    monkeypatch.setattr(embedders.default, "embed", noted("embedder", computed))
    reranker = Reversing()
    monkeypatch.setattr(reranker, "score", noted("reranker", computed))
    await Retriever(store, embedders, patient(), reranker).warm_up()
    assert sorted(computed) == ["embedder", "reranker", "store"]


def noted(name: str, computed: list[str]) -> Callable[..., Awaitable[None]]:
    async def note(*_: object) -> None:
        computed.append(name)

    return note


async def test_a_reranker_has_the_last_word_on_the_order(
    store: PassageStore, embedders: Embedders, reader: UUID
) -> None:
    stages, orders = [], []
    for reranker in (None, Reversing()):
        trace = Trace()
        asked = Query(reader, "create an API key", ("docs",), 5, 0.0)
        found = await Retriever(store, embedders, patient(), reranker).stages(asked, trace)
        stages.append([span.name for span in trace.spans if span.lane == "retrieval"])
        orders.append([each.candidate.key for each in found.reranked])
    assert stages == [STAGES, [*STAGES[:-1], "reread", "compress"]]
    usual, reread = orders
    assert reread == [*reversed(usual[:3]), *usual[3:]]


async def test_a_reranker_that_is_late_changes_nothing(store: PassageStore, embedders: Embedders, reader: UUID) -> None:
    query = "How do I create an API key?"
    usual, _ = await retrieve(store, embedders, reader, query)
    config = patient(reread_ms=20.0)
    late, trace = await retrieve(store, embedders, reader, query, config=config, reranker=Reversing(60.0))
    assert late == usual
    [span] = [span for span in trace.spans if span.name == "reread"]
    assert span.attributes["skipped"] == "over budget" and span.attributes["read"] == 0
