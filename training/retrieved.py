"""What a running worker finds in its store `docs` for questions about the documentation, and beside small talk.

Writes data/retrieved.jsonl:

python -m training.retrieved URL API_KEY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from random import Random

import httpx

from training.passages import documentation, heard, questions
from training.talk import Talk
from training.values import DATA, Chooser

TALK = 1200  # messages
ASKED = {"max_num_results": 4, "ranking_options": {"score_threshold": 0.3}}  # as page.toml has it, and as a row holds


def found(client: httpx.Client) -> Iterator[str]:
    titles = {" ".join(passage.text.split()): passage.title for passage in documentation()}
    talk, choose = Talk(), Chooser(Random("retrieved"))
    said = (talk.exchange(choose, page=True)[0] for _ in range(TALK))
    for question in dict.fromkeys(map(heard, (*questions(), *said))):
        answer = client.post("/v1/vector_stores/docs/search", json={"query": question, **ASKED}).raise_for_status()
        texts = [each["content"][0]["text"] for each in answer.json()["data"]]
        # a passage is a part of a chunk, or spans several of one heading: its first words are in one
        begun = [" ".join(text.split())[:60] for text in texts]
        named = [next((title for chunk, title in titles.items() if words in chunk), "") for words in begun]
        if texts:
            yield json.dumps([question, *zip(named, texts, strict=True)], ensure_ascii=False)


if __name__ == "__main__":
    with httpx.Client(base_url=sys.argv[1], headers={"authorization": f"Bearer {sys.argv[2]}"}) as worker:
        (DATA / "retrieved.jsonl").write_text("".join(f"{line}\n" for line in found(worker)))
