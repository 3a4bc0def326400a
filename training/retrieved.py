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
PASSAGES_MAX, SCORE_THRESHOLD = 4, 0.3  # as page.toml has it, and as many as a row holds


def lines(client: httpx.Client) -> Iterator[str]:
    titles = {" ".join(passage.text.split()): passage.title for passage in documentation()}
    talk, choose = Talk(), Chooser(Random("retrieved"))
    said = (talk.exchange(choose, page=True)[0] for _ in range(TALK))
    for question in dict.fromkeys(map(heard, (*questions(), *said))):
        asked = {
            "query": question,
            "max_num_results": PASSAGES_MAX,
            "ranking_options": {"score_threshold": SCORE_THRESHOLD},
        }
        found = client.post("/v1/vector_stores/docs/search", json=asked).raise_for_status().json()["data"]
        texts = [each["content"][0]["text"] for each in found]
        # a passage is a part of a chunk, or spans several of one heading
        named = [(next((t for c, t in titles.items() if _begins(text) in c), ""), text) for text in texts]
        if named:
            yield json.dumps([question, *named], ensure_ascii=False)


def _begins(text: str) -> str:
    return " ".join(text.split())[:60]


if __name__ == "__main__":
    with httpx.Client(base_url=sys.argv[1], headers={"authorization": f"Bearer {sys.argv[2]}"}) as worker:
        (DATA / "retrieved.jsonl").write_text("".join(f"{line}\n" for line in lines(worker)))
