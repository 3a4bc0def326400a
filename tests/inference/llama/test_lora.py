"""An adapter changes what its own model says, as if it were merged into the weights, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from inference.adapter import ADAPTERS_MAX, Adapter, adapters_in
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.config import EngineConfig
from inference.errors import AdapterNotLoaded, ModelNotLoaded
from inference.generation import Sampling
from inference.llama import LlamaContext, LlamaModel, are_loaded
from inference.model import ChatModel
from inference.prompt import ChatMessage
from tests.inference.adapters import random_changes, write_adapter, write_merged

TOKENS = list(range(300, 330))
CONFIG = EngineConfig(parallel=1, resident=0, context=256, threads=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in 32 bits, whose products are exact enough to compare, with an adapter and another one."""
    folder = tmp_path_factory.mktemp("adapters")
    write_merged(DRAFT_MODEL, folder / "base.gguf", {})
    for seed, name in enumerate(("support", "sales")):
        changes = random_changes(DRAFT_MODEL, seed=seed)
        write_adapter(folder / f"{name}.gguf", changes)
        write_merged(DRAFT_MODEL, folder / f"with-{name}.gguf", changes)
    return folder


@pytest.fixture(scope="module")
def base(files: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(files / "base.gguf")
    yield model
    model.close()


def logits(model: LlamaModel, *adapters: Adapter) -> NDArray[np.float32]:
    context = LlamaContext(model, slots=1, context=256, rows_max=64, threads=1, adapters=adapters)
    found = context.decode([Chunk(0, 0, TOKENS)]).copy()
    context.close()
    return found


def logits_of(path: Path) -> NDArray[np.float32]:
    model = LlamaModel.load(path)
    found = logits(model)
    model.close()
    return found


def test_an_adapter_computes_what_its_change_merged_into_the_weights_computes(files: Path, base: LlamaModel) -> None:
    plain, merged = logits(base), logits_of(files / "with-support.gguf")
    changed = np.abs(merged - plain).max()
    assert changed > 1
    assert np.abs(logits(base, Adapter(files / "support.gguf")) - merged).max() < changed / 100


def test_half_of_a_change_lies_between_nothing_and_all_of_it(files: Path, base: LlamaModel, tmp_path: Path) -> None:
    half = write_merged(DRAFT_MODEL, tmp_path / "half.gguf", random_changes(DRAFT_MODEL), scale=0.5)
    plain, found = logits(base), logits(base, Adapter(files / "support.gguf", 0.5))
    assert np.abs(found - logits_of(half)).max() < np.abs(found - plain).max() / 100


def test_an_adapter_of_scale_0_changes_no_bit(files: Path, base: LlamaModel) -> None:
    assert (logits(base, Adapter(files / "support.gguf", 0.0)) == logits(base)).all()


def test_a_model_without_an_adapter_never_notices_that_another_on_its_weights_has_one(
    files: Path, base: LlamaModel
) -> None:
    before = logits(base)
    context = LlamaContext(
        base, slots=1, context=256, rows_max=64, threads=1, adapters=[Adapter(files / "support.gguf")]
    )
    context.decode([Chunk(0, 0, TOKENS)])
    assert (logits(base) == before).all()
    with_both = logits(base, Adapter(files / "sales.gguf"))
    context.close()
    assert (logits(base) == before).all()
    assert (logits(base, Adapter(files / "sales.gguf")) == with_both).all()


def test_states_of_different_adapters_or_scales_are_not_each_others(files: Path, base: LlamaModel) -> None:
    def fingerprint(*adapters: Adapter) -> bytes:
        context = LlamaContext(base, slots=1, context=256, rows_max=64, threads=1, adapters=adapters)
        context.close()
        return context.fingerprint

    support, sales = Adapter(files / "support.gguf"), Adapter(files / "sales.gguf")
    marks = [fingerprint(*each) for each in ((), (support,), (sales,), (replace(support, scale=0.5),))]
    assert len({*marks, fingerprint(support, sales)}) == 5
    assert fingerprint(support) == marks[1]


async def answer(model: ChatModel) -> list[int]:
    prompt = model.encode(model.render([ChatMessage("user", "Thank you!")]))
    generation = model.generate(prompt, Sampling(temperature=0, max_tokens=12))
    await generation.stream(lambda _: None)
    return generation.ids


async def opened(config: EngineConfig) -> ChatModel:
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    return model


@pytest.mark.any_answer("the same rows are computed again")
async def test_models_that_differ_in_their_adapters_share_weights_that_stay_until_the_last_one_closes(
    files: Path,
) -> None:
    path = files / "base.gguf"
    config = replace(CONFIG, model_path=path)
    plain = await opened(config)
    adapted = await opened(replace(config, adapters=(Adapter(files / "support.gguf"),)))
    try:
        assert adapted._weights.handle == plain._weights.handle
        first, other = await asyncio.gather(answer(plain), answer(adapted))
        assert first != other
        assert await answer(plain) == first
        await plain.close()
        assert are_loaded(path)
        assert await answer(adapted) == other
    finally:
        await adapted.close()
    assert not are_loaded(path)


async def test_a_draft_model_drafts_for_a_model_with_an_adapter_and_changes_nothing(files: Path) -> None:
    changes = random_changes(CHAT_MODEL, size=0.02)
    adapter = Adapter(write_adapter(files / "chat.gguf", changes))
    config = replace(CONFIG, adapters=(adapter,))
    plain = await opened(config)
    drafting = await opened(replace(config, draft_path=DRAFT_MODEL, draft_min=3, draft_max=3))
    try:
        assert await answer(drafting) == await answer(plain)
    finally:
        await plain.close()
        await drafting.close()


@pytest.mark.any_answer("nothing is answered")
async def test_a_model_whose_adapter_makes_all_numbers_none_does_not_start(files: Path) -> None:
    (name, (a, b)), *rest = random_changes(DRAFT_MODEL).items()
    adapter = Adapter(write_adapter(files / "diverged.gguf", {name: (a * np.float32("nan"), b), **dict(rest)}))
    config = replace(CONFIG, model_path=files / "base.gguf", adapters=(adapter,))
    model = await asyncio.to_thread(ChatModel.load, config)
    with pytest.raises(ModelNotLoaded, match="base gives no finite logits: it or one of its adapters is damaged"):
        await model.start()
    await model.close()


def _activated(writer: gguf.GGUFWriter) -> None:
    tokens, kind = [1, 2], gguf.GGUFValueType
    writer.add_key_value("adapter.alora.invocation_tokens", tokens, kind.ARRAY, sub_type=kind.UINT32)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.gguf", "no adapter file at "),
        ("text.gguf", "does not fit base.gguf: failed to load lora adapter from file"),
        ("base.gguf", "does not fit base.gguf: expect general.type to be 'adapter'"),
        ("cut.gguf", "does not fit base.gguf: LoRA tensor .* not within the file bounds"),
        ("gemma.gguf", "does not fit base.gguf: model arch and LoRA arch mismatch"),
        ("vector.gguf", "does not fit base.gguf: expect adapter.type to be 'lora'"),
        ("larger.gguf", "does not fit base.gguf: tensor .* has incorrect shape$"),
        ("deeper.gguf", "does not fit base.gguf: LoRA tensor 'blk.99.attn_q.weight' does not exist in base model$"),
        ("activated.gguf", "activated.gguf is an activated adapter"),
    ],
)
def test_a_wrong_adapter_is_refused_in_one_line(files: Path, base: LlamaModel, name: str, reason: str) -> None:
    changes = random_changes(DRAFT_MODEL)
    whole = (files / "support.gguf").read_bytes()
    (files / "text.gguf").write_text("hello")
    (files / "cut.gguf").write_bytes(whole[: len(whole) * 3 // 4])
    write_adapter(files / "gemma.gguf", changes, architecture="gemma")
    write_adapter(files / "vector.gguf", changes, kind="control")
    write_adapter(files / "larger.gguf", random_changes(CHAT_MODEL))
    write_adapter(files / "deeper.gguf", {"blk.99.attn_q.weight": next(iter(changes.values()))})
    write_adapter(files / "activated.gguf", changes, more=_activated)
    with pytest.raises(AdapterNotLoaded, match=reason) as refused:
        logits(base, Adapter(files / name))
    assert "\n" not in str(refused.value)
    assert (logits(base) == logits(base)).all()  # and the model goes on


@pytest.mark.parametrize(
    ("text", "adapters"),
    [
        ("a.gguf", [("a.gguf", 1.0)]),
        ("a.gguf:0.5, /b/c.gguf:-1", [("a.gguf", 0.5), ("/b/c.gguf", -1.0)]),
        ("C:/models/a.gguf", [("C:/models/a.gguf", 1.0)]),
        ("", []),
    ],
)
def test_a_setting_names_files_and_scales(text: str, adapters: Sequence[tuple[str, float]]) -> None:
    assert [(str(adapter.path), adapter.scale) for adapter in adapters_in(text)] == adapters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (":0.5", "must look like support.gguf"),
        ("a.gguf:inf", "has a scale of inf"),
        ("a.gguf:1e9", "has a scale of 1e9"),
        ("a.gguf,a.gguf:2", "twice"),
        (",".join(f"{number}.gguf" for number in range(ADAPTERS_MAX + 1)), "at most"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapters_in(text)
