"""What a running worker finds in its store `docs` for questions about the documentation, and beside small talk.

Adds to data/retrieved.jsonl what is not there yet; delete the file after the documentation has changed.

python -m training.retrieved URL API_KEY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx

from training.passages import Passage
from training.questions import documentation, heard, known, questions, written_questions
from training.talk import Talk
from training.values import DATA, Chooser

TALK = 1200  # messages
AT_ONCE = 4  # searches
ASKED = {"max_num_results": 4, "ranking_options": {"score_threshold": 0.3}}  # as page.toml has it, and as a row holds


def found(client: httpx.Client) -> Iterator[str]:
    titles = {" ".join(passage.text.split()): passage.title for passage in documentation()}
    talk, choose = Talk(), Chooser("retrieved")
    said = (talk.exchange(choose, page=True)[0] for _ in range(TALK))

    answered = {heard(question): fact for fact in written_questions() for question in fact.questions}

    def line(question: str) -> str:
        answer = client.post("/v1/vector_stores/docs/search", json={"query": question, **ASKED}).raise_for_status()
        texts = [each["content"][0]["text"] for each in answer.json()["data"]]
        # a passage is a part of a chunk, or spans several of one heading: its first words are in one
        begun = [" ".join(text.split())[:60] for text in texts]
        named = [next((title for chunk, title in titles.items() if words in chunk), "") for words in begun]
        found = list(zip(named, texts, strict=True))
        if (fact := answered.get(question)) and not any(Passage(*each).tells(fact) for each in found):
            found = []  # without the answer, training has no use for them
        return json.dumps([question, *found], ensure_ascii=False)

    new = [each for each in dict.fromkeys(map(heard, (*questions(), *said))) if each not in known()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(line, new)


if __name__ == "__main__":
    key = {"authorization": f"Bearer {sys.argv[2]}"}
    with (
        httpx.Client(base_url=sys.argv[1], headers=key, timeout=60) as worker,
        (DATA / "retrieved.jsonl").open("a") as target,
    ):
        for each in found(worker):
            print(each, file=target, flush=True)
