"""What quantising does to a model is measured, and nothing is found where nothing was changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inference.attention import KV_TYPES
from inference.bundled import CHAT_MODEL, DRAFT_MODEL, EMBEDDER, FOLDER
from inference.errors import InferenceError
from inference.llama import LlamaModel, quantize
from inference.provisioning import quantization
from inference.provisioning.isolated_process import Isolated, RunFailed
from inference.provisioning.quantization import (
    LEAD_TOKENS,
    WINDOW_TOKENS,
    WINDOWS_MAX,
    Comparison,
    _Tally,
    compare,
    cut,
)

TEXT = (FOLDER / "MODEL_CARD.md").read_text()[:1000]


def compared(before: Path, after: Path, text: str = TEXT) -> Comparison:
    return compare(before, after, text, threads=1, gpu_layers=0)


def test_a_model_equals_itself() -> None:
    found = compared(DRAFT_MODEL, DRAFT_MODEL)
    assert found.agreement == 1.0 and found.divergence == 0.0
    assert found.perplexity_before == found.perplexity_after > 1


def test_coarser_weights_diverge_more(tmp_path: Path) -> None:
    divergences = []
    for kind in ("f16", "q4_0"):
        quantize(DRAFT_MODEL, tmp_path / f"{kind}.gguf", kind, threads=1)
        divergences.append(compared(DRAFT_MODEL, tmp_path / f"{kind}.gguf").divergence)
    fine, coarse = divergences
    assert 0 < fine < 0.01 < coarse


def test_smaller_keys_and_values_diverge_more() -> None:
    text = TEXT[:500]
    found = [compare(CHAT_MODEL, CHAT_MODEL, text, threads=1, gpu_layers=0, kv_type=kind) for kind in KV_TYPES]
    same, fine, coarse = (each.divergence for each in found)
    assert same == 0 < fine < 0.01 and fine * 3 < coarse
    assert found[1].agreement > found[2].agreement > 0.5


def test_another_model_is_another_model() -> None:
    found = compared(CHAT_MODEL, DRAFT_MODEL)
    assert found.agreement < 0.9 and found.divergence > 0.1


def test_a_tally_of_known_guesses() -> None:
    tally = _Tally()
    tally.add(np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.75, 0.25], [0.2, 0.8]]), [0, 0])
    found = tally.comparison()
    assert found.tokens == 2
    assert found.agreement == 0.5  # the first row's tie goes to the first token on both sides
    assert found.perplexity_before == pytest.approx((1 / (0.5 * 0.9)) ** 0.5)
    assert found.perplexity_after == pytest.approx((1 / (0.75 * 0.2)) ** 0.5)
    first = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    second = 0.9 * np.log(0.9 / 0.2) + 0.1 * np.log(0.1 / 0.8)
    assert found.divergence == pytest.approx((first + second) / 2)


def test_windows_are_bounded_and_equal() -> None:
    model = LlamaModel.load(DRAFT_MODEL, weights=False)
    windows = cut(model, TEXT * 300)
    assert len(windows) == WINDOWS_MAX and {len(window) for window in windows} == {WINDOW_TOKENS}
    (short,) = cut(model, TEXT[:200])
    assert 2 * LEAD_TOKENS <= len(short) < WINDOW_TOKENS
    with pytest.raises(InferenceError, match="or more"):
        cut(model, "too short")
    model.close()


def test_a_slow_machine_judges_by_fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "BUDGET_S", -1.0)
    found = compared(DRAFT_MODEL, DRAFT_MODEL)
    assert 0 < found.tokens <= WINDOWS_MAX


def test_models_of_different_vocabularies_cannot_be_compared() -> None:
    with pytest.raises(InferenceError, match="different vocabularies"):
        compared(DRAFT_MODEL, EMBEDDER)


def test_a_quantised_model_is_smaller_and_of_its_kind(tmp_path: Path) -> None:
    quantize(CHAT_MODEL, tmp_path / "small.gguf", "q4_0", threads=1)
    model = LlamaModel.load(tmp_path / "small.gguf", weights=False)
    assert model.quantisation == "Q4_0" and model.chat_template is not None
    assert (tmp_path / "small.gguf").stat().st_size < CHAT_MODEL.stat().st_size
    model.close()


def test_what_cannot_be_quantised_ends_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(CHAT_MODEL.read_bytes()[:100_000])
    with pytest.raises(RunFailed, match="could not quantise"):
        Isolated(quantize, timeout_s=60)(tmp_path / "cut.gguf", tmp_path / "out.gguf", "q4_0", threads=1)
