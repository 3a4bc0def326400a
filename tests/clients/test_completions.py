"""Text completions through the official client, and the tokens that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.clients.conftest import MODEL

PROMPT = "The weather in Oslo is"
GREEDY: Any = {"model": MODEL, "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def http(server: Mapping[str, Any]) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    with httpx.Client(base_url=server["url"], headers=headers) as client:
        yield client


def test_a_completion_says_the_same_whole_and_streamed(lenient_client: OpenAI) -> None:
    whole = lenient_client.completions.create(prompt=PROMPT, **GREEDY)
    chunks = list(lenient_client.completions.create(prompt=PROMPT, stream=True, **GREEDY))
    assert whole.object == "text_completion"
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks)
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason
    assert whole.usage is not None and 0 < whole.usage.completion_tokens <= 8


@pytest.mark.any_answer("what a prompt is continued with is the same in every form, whatever it is")
def test_prompts_are_texts_or_tokens(client: OpenAI, http: httpx.Client) -> None:
    one = client.completions.create(prompt=PROMPT, echo=True, **GREEDY)
    assert one.choices[0].text.startswith(PROMPT)
    content = {"content": PROMPT, "add_special": True}
    ids = http.post("/tokenize", json=content).json()["tokens"]
    many = client.completions.create(prompt=[PROMPT, "hello"], n=2, **GREEDY)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in many.choices]
    assert PROMPT + texts[0] == one.choices[0].text and texts[0] == texts[1] and texts[2] == texts[3]
    for prompt in (ids, [ids, ids]):
        same = client.completions.create(prompt=prompt, **GREEDY)
        assert {choice.text for choice in same.choices} == {texts[0]}


def test_likelihoods_are_told_in_the_old_form(client: OpenAI) -> None:
    (choice,) = client.completions.create(prompt=PROMPT, logprobs=2, **GREEDY).choices
    told = choice.logprobs
    assert told is not None and told.tokens and told.top_logprobs and told.token_logprobs and told.text_offset
    assert "".join(told.tokens) == choice.text
    assert told.text_offset == [len("".join(told.tokens[:at])) for at in range(len(told.tokens))]
    assert all(top[token] == max(top.values()) for token, top in zip(told.tokens, told.top_logprobs, strict=True))


def test_what_cannot_be_honoured_is_refused_by_name(client: OpenAI) -> None:
    for more, param in (
        ({"suffix": "."}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 6}, "echo"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": ["x"] * 33}, "prompt"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(**{"prompt": PROMPT, **GREEDY, **more})
        assert refused.value.param == param or param in str(refused.value)


def test_tokens_spell_their_text(http: httpx.Client) -> None:
    text = "Grüße, 世界 <|im_end|>"
    plain = http.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    marked = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert len(marked) < len(plain)
    for ids in (plain, marked):
        assert http.post("/detokenize", json={"tokens": ids}).json()["content"] == text
    spelled = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert [each["id"] for each in spelled] == marked
    pieces = (bytes(p) if isinstance(p, list) else p.encode() for p in (each["piece"] for each in spelled))
    assert b"".join(pieces).decode() == text
    chat = {"messages": [{"role": "user", "content": "hello"}], "return_token_strs": True}
    counted = http.post("/tokenize", json=chat).json()
    assert counted["count"] == len(counted["tokens"]) == len(counted["token_strs"])
    assert "hello" in "".join(counted["token_strs"])
    assert http.post("/detokenize", json={"tokens": []}).json()["content"] == ""
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"content": "x", "prompt": "x"}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [True]}),
    ):
        assert http.post(path, json=body).status_code == 400
