"""Text completions as evaluation harnesses request them, and the log probabilities of prompts in them.

lm-eval's `local-completions` sends a context with its continuation, both as token ids, and asks for the echo with log
probabilities and one token: `likelihood_of` reads the answer as that client does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from openai import BadRequestError, OpenAI

from inference.backend import Chunk
from inference.llama import LlamaContext, LlamaModel
from tests.real_weights.behaviours import OWN
from tests.real_weights.conftest import CONTEXT

FRANCE = "The capital of France is"
HARNESS: Any = {"model": OWN, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
# Kernels for different numbers of rows round int8 activations differently: single logits by up to about 0.9.
NATS = 1.0


@pytest.fixture(scope="module")
def http(real_server: dict[str, Any]) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {real_server['api_key']}"}
    with httpx.Client(base_url=real_server["url"], headers=headers, timeout=60) as client:
        yield client


def complete(http: httpx.Client, prompt: Any, **asked: Any) -> list[dict[str, Any]]:
    answer = http.post("/v1/completions", json={**HARNESS, "prompt": prompt, **asked})
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


def ids_of(http: httpx.Client, text: str) -> list[int]:
    asked = {"model": OWN, "prompt": text, "add_special_tokens": False}
    ids: list[int] = http.post("/tokenize", json=asked).json()["tokens"]
    return ids


def likelihood_of(choice: dict[str, Any], context: int) -> tuple[float, bool]:
    """The log probability of what follows so many tokens, without the last one, and whether it is the likeliest."""
    told = choice["logprobs"]
    own, top = told["token_logprobs"][context:-1], told["top_logprobs"][context:-1]
    return sum(own), all(each == max(likely.values()) for each, likely in zip(own, top, strict=True))


def direct(file: Path, ids: Sequence[int]) -> NDArray[np.float64]:
    """The log probability of each token but the first, as llama.cpp alone computes it."""
    model = LlamaModel.load(file)
    context = LlamaContext(model, slots=1, context=256, rows_max=len(ids), threads=1, outputs_max=len(ids))
    try:
        rows = context.decode([Chunk(0, 0, ids, outputs=len(ids))])[:-1].astype(np.float64)
        told: NDArray[np.float64] = rows[np.arange(len(rows)), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
        return told
    finally:
        context.close()
        model.close()


@pytest.mark.parametrize("top", [0, 1, 5])
@pytest.mark.parametrize("tokens", [0, 1])
def test_an_echo_has_the_log_probabilities_of_the_prompt(http: httpx.Client, top: int, tokens: int) -> None:
    (choice,) = complete(http, FRANCE, logprobs=top, max_tokens=tokens)
    told, ids = choice["logprobs"], ids_of(http, FRANCE)
    assert len(told["tokens"]) == len(ids) + tokens
    assert "".join(told["tokens"]) == choice["text"] and choice["text"].startswith(FRANCE)
    assert told["text_offset"] == [len("".join(told["tokens"][:at])) for at in range(len(told["tokens"]))]
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    for token, own, likely in zip(
        *(told[key][1:] for key in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert likely[token] == own and max(1, top) <= len(likely) <= top + 1
    assert choice["finish_reason"] == "length"


def test_they_are_those_of_the_model(http: httpx.Client, real_weights: Path) -> None:
    text = f"{FRANCE} Paris, and the capital of Italy is Rome. Two plus two is purple."
    ids = ids_of(http, text)
    (choice,) = complete(http, ids, max_tokens=0)
    told, alone = np.array(choice["logprobs"]["token_logprobs"][1:]), direct(real_weights, ids)
    assert np.abs(told - alone).max() < NATS
    assert np.corrcoef(told, alone)[0, 1] > 0.99


def test_prompts_are_texts_or_token_ids_alone_or_in_lists(http: httpx.Client) -> None:
    ids = ids_of(http, FRANCE)
    (one,) = complete(http, FRANCE)
    for prompt in ([FRANCE], ids, [ids], [FRANCE] * 2, [ids] * 3):
        for choice in complete(http, prompt):
            assert choice["logprobs"]["tokens"] == one["logprobs"]["tokens"]
            assert choice["logprobs"]["token_logprobs"] == one["logprobs"]["token_logprobs"]


def test_a_likely_continuation_is_told_from_others(http: httpx.Client) -> None:
    context = ids_of(http, FRANCE)
    prompts = [[*context, *ids_of(http, told)] for told in (" Paris", " a banana")]
    choices = complete(http, prompts)
    assert [choice["index"] for choice in choices] == [0, 1]
    (right, is_likeliest), (wrong, is_not) = [likelihood_of(choice, len(context)) for choice in choices]
    assert right > wrong and is_likeliest and not is_not


def test_the_mark_that_ends_an_answer_counts_as_a_token(http: httpx.Client) -> None:
    """Readers drop one token at the end: it must not be one of the prompt's."""
    (end,) = ids_of(http, http.get("/tokenizer_info", params={"model": OWN}).json()["eos_token"])
    context = ids_of(http, FRANCE)
    paris = [*context, *ids_of(http, " Paris")]
    (longer,) = complete(http, paris)
    (ended,) = complete(http, paris, logit_bias={end: 100})
    assert (ended["text"], ended["finish_reason"]) == (f"{FRANCE} Paris", "stop")
    assert len(ended["logprobs"]["tokens"]) == len(longer["logprobs"]["tokens"])
    assert likelihood_of(ended, len(context)) == likelihood_of(longer, len(context))


def test_texts_of_any_script_are_scored_by_their_bytes(http: httpx.Client) -> None:
    text = "Grüße, 世界 🙂 <|im_end|>\n"
    (choice,) = complete(http, text, max_tokens=0)
    told = choice["logprobs"]
    assert choice["text"] == text and "<|im_end|>" in told["tokens"]
    assert told["text_offset"] == sorted(told["text_offset"]) and told["text_offset"][-1] == len(text) - 1


def test_a_text_is_continued_up_to_any_of_many_stop_strings(http: httpx.Client) -> None:
    """As for programs: a harness sends one for each way in which another statement may begin."""
    stops = ["\nclass", "\ndef", "\n#", "\nif", "\nprint", "<|endoftext|>", " Paris"]
    asked: Any = {"echo": False, "logprobs": None, "max_tokens": 8}
    (whole,) = complete(http, FRANCE, **asked)
    (choice,) = complete(http, FRANCE, **asked, stop=stops)
    assert " Paris" in whole["text"]
    assert (choice["text"], choice["finish_reason"]) == (whole["text"].split(" Paris")[0], "stop")


def test_a_seed_draws_the_same_again(client: OpenAI) -> None:
    asked: Any = {"model": OWN, "prompt": FRANCE, "max_tokens": 8, "temperature": 1, "seed": 7}
    exact: Any = {"extra_headers": {"x-firsttoken-deterministic": "true"}}
    first, second = (client.completions.create(**asked, **exact).choices[0].text for _ in range(2))
    assert first == second


def test_no_tokens_and_no_echo_read_the_prompt_only(client: OpenAI) -> None:
    answer = client.completions.create(model=OWN, prompt=FRANCE, max_tokens=0)
    assert answer.choices[0].text == "" and answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": [[1] * CONTEXT]}, "prompt"),
        ({"prompt": "word " * CONTEXT}, "prompt"),
        ({"suffix": "."}, "suffix"),
        ({"logprobs": 6}, "echo"),
        ({"stream": True}, "stream"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": [[1], []]}, "prompt[1]"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_its_field(client: OpenAI, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(**{**HARNESS, "prompt": FRANCE, **asked})
    assert refused.value.param == param
    if "context" in str(refused.value):
        assert refused.value.code == "context_length_exceeded" and str(CONTEXT) in str(refused.value)


def test_a_harness_learns_the_tokenizer(http: httpx.Client) -> None:
    told = http.get("/tokenizer_info", params={"model": OWN}).json()
    assert told["eos_token"] == "<|im_end|>" and "<|im_start|>" in told["chat_template"]
    assert http.get("/tokenizer_info", params={"model": "nobody"}).status_code == 404
    ids = ids_of(http, FRANCE)
    assert http.post("/detokenize", json={"model": OWN, "tokens": ids}).json()["prompt"] == FRANCE
