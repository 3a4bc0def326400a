"""`firsttoken eval cache`: above which similarity of questions a cached answer may be reused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import orjson

from worker.config import Config
from worker.errors import StartError
from worker.evals.case import Case
from worker.evals.similarity_threshold import Hits, Question, fit
from worker.evals.suite import read_suites
from worker.home import Home
from worker.retrieval_models import open_embedders


async def evaluate_cache(config: Config, *, files: Sequence[Path], wrong: float, as_json: bool) -> None:
    """Raises StartError if there are too few cases to decide."""
    suite = await asyncio.to_thread(read_suites, files)
    cases = [case for case in suite.cases if not case.tools and case.said[-1]["role"] == "user"]
    Home(config.home).prepare()
    async with open_embedders(config) as embedders:
        asked = [(case, await embedders.default.embed_query(case.question, salt="")) for case in cases]
        questions = [Question(case.question, *_marks(case), vectors.vector) for case, vectors in asked]
        name = embedders.default.name
    found = fit(questions, wrong)
    if not found.fitted.repeated or not found.held_out.repeated:
        raise StartError(
            f"too few of the {len(suite.cases)} cases ask the same question in other words: add some with the same "
            "`expect`, and without tools"
        )
    if as_json:
        told = {"threshold": found.value, "embedder": name}
        halves = {"fitted": found.fitted, "held_out": found.held_out}
        print(orjson.dumps({**told, **{half: _told(hits) for half, hits in halves.items()}}).decode())
        return
    if found.value is None:
        raise StartError(
            f"no similarity threshold makes {1 - wrong:.0%} of the hits correct: leave the semantic cache off"
        )
    print(f"--semantic-cache {found.value:g}    # similarity by {name}")
    for half, hits in (("fitted on", found.fitted), ("held out", found.held_out)):
        print(
            f"{half:<10} {hits.questions} questions, {hits.repeated} of them with paraphrases: {hits.hits} "
            f"hits, {hits.wrong} of them wrong ({hits.wrong_share:.1%}); {hits.found_share:.0%} of the possible hits "
            "were found"
        )


def _marks(case: Case) -> tuple[str, str]:
    """Fingerprints of the text before the question, and of the right answer."""
    before = (case.instructions, case.stores, case.said[:-1])
    expected = case.expect.model_dump_json(by_alias=True, exclude_none=True)
    return orjson.dumps(before).decode(), expected


def _told(hits: Hits) -> dict[str, float]:
    counts = {"questions": hits.questions, "repeated": hits.repeated, "hits": hits.hits, "wrong": hits.wrong}
    return {**counts, "wrong_share": round(hits.wrong_share, 4), "found_share": round(hits.found_share, 4)}
