"""A draft model needs the vocabulary of the model it drafts for: its tokens, whatever it shows of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from inference.bundled import CHAT_MODEL, DRAFT_MODEL, EMBEDDER
from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.errors import ModelNotLoaded
from inference.generation import Sampling
from inference.llama import LlamaModel
from inference.model import ChatModel
from inference.prompt import CacheScope, ChatMessage
from inference.provisioning.calibration import Calibrations
from inference.provisioning.doctor import Level, draft_finding, examine
from inference.request import Request
from inference.speculative.draft_model import PADDING_TOKENS_MAX, DraftModel, same_vocabulary
from inference.tokenizer import TextStream
from tests.inference.variants import KINDS, TEMPLATE, TOKENS, fact, write_variant
from tests.scripted import ScriptedBackend

SHARED = 26


@pytest.fixture(scope="module")
def sibling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled draft as another release of its family has it: a call's mark is a control token that its template
    does not name, and the vocabulary is padded."""
    tokens, kinds = fact(DRAFT_MODEL, TOKENS), list(fact(DRAFT_MODEL, KINDS))
    kinds[tokens.index("<tool_call>")] = gguf.TokenType.CONTROL
    padding = [f"[PAD{place}]" for place in range(64)]
    facts = {
        TOKENS: [*tokens, *padding],
        KINDS: [*kinds, *(gguf.TokenType.UNUSED for _ in padding)],
        TEMPLATE: "{{ messages[0].content }}",
    }
    target = tmp_path_factory.mktemp("models") / "sibling.gguf"
    write_variant(DRAFT_MODEL, target, facts, rows=len(tokens) + len(padding))
    return target


def test_vocabularies_are_one_when_they_differ_by_padding_only() -> None:
    tokens = [b"a", b"b", b"c"]
    assert same_vocabulary(tokens, tokens)
    assert same_vocabulary([*tokens, b"[PAD]"], tokens) and same_vocabulary(tokens, [*tokens, b"[PAD]"])
    assert not same_vocabulary([b"a", b"c", b"b"], tokens)
    assert not same_vocabulary([*tokens, *[b""] * (PADDING_TOKENS_MAX + 1)], tokens)


async def test_a_model_drafts_for_its_sibling_of_another_template(sibling: Path) -> None:
    config = EngineConfig(draft_path=sibling, draft_min=3, draft_max=3, parallel=1, resident=0)
    answers = []
    for each in (config, EngineConfig(parallel=1, resident=0)):
        model = await asyncio.to_thread(ChatModel.load, each)
        await model.start()
        prompt = model.encode(model.render([ChatMessage("user", "tell me a joke")]))
        generation = model.generate(prompt, Sampling(temperature=0, max_tokens=60))
        async for _ in generation:
            pass
        answers.append(generation.ids)
        assert (generation.facts.acceptance.accepted > 10) is (each is config)
        await model.close()
    assert answers[0] == answers[1]


def test_the_doctor_finds_a_sibling_well(sibling: Path) -> None:
    draft, model = (LlamaModel.load(path, weights=False) for path in (sibling, CHAT_MODEL))
    assert draft.pieces() != model.pieces()
    assert draft_finding(draft, model).level is Level.OK


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ModelNotLoaded, match="vocabularies differ"):
        ChatModel.load(EngineConfig(draft_path=EMBEDDER))


def test_a_draft_of_another_vocabulary_is_a_problem() -> None:
    config, calibrations = EngineConfig(draft_path=EMBEDDER), Calibrations(Path("/nowhere/calibrations.json"))
    findings = {finding.name: finding for finding in examine(config, calibrations)}
    assert findings["draft"].level is Level.PROBLEM and "--draft" in findings["draft"].todo
    assert "speed" not in findings


class Fanciful(ScriptedBackend):
    """Likes a token best that only it has."""

    def _logits(self, prefix: list[int]) -> NDArray[np.float32]:  # type: ignore[override] # a list is what it gets
        row = super()._logits(prefix)
        row[SHARED] = 9.0
        return row


@pytest.fixture
def larger() -> Fanciful:
    return Fanciful(slots=2, context=50, rows_max=128, vocabulary=SHARED + 4)


def request(prompt: list[int], slot: int) -> Request:
    sampler, text = Sampler(Sampling()), TextStream([b""] * SHARED)
    return Request(prompt=prompt, max_tokens=20, sampler=sampler, text=text, scope=CacheScope(""), slot=slot)


def test_a_token_that_the_model_does_not_have_is_never_drafted(larger: Fanciful) -> None:
    drafts = DraftModel(larger, SHARED).propose([(request([1, 2], 0), 4), (request([3], 1), 2)])
    assert {slot: len(draft) for slot, draft in drafts.items()} == {0: 4, 1: 2}
    assert max(token for draft in drafts.values() for token in draft) < SHARED


def test_a_text_with_a_token_that_the_drafter_does_not_have_gets_no_draft(larger: Fanciful) -> None:
    drafts = DraftModel(larger, SHARED).propose([(request([1, SHARED, 2], 0), 4), (request([3], 1), 2)])
    assert set(drafts) == {1}
    assert larger.steps == [1, 1]
