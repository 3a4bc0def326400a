"""What was measured to be fastest is kept for the machine, the model and the settings that it was measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.attention import ALL, Attention
from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.config import EngineConfig
from inference.provisioning import calibration, machine
from inference.provisioning.calibration import KEPT_MAX, Calibrations, affordable, chosen
from inference.provisioning.speed import Pace, best_size

RULE, OTHER = Attention(unified=False, flash=False), Attention(unified=True, flash=True)


def paces(**ms: float) -> list[Pace]:
    """All take 10 ms a step, but those that are named by their layout."""
    slow = {str(each): 10.0 for each in ALL} | {str(OTHER): ms.get("other", 10.0)}
    return [Pace(each, {"1 stream": slow[str(each)]}) for each in ALL]


@pytest.mark.parametrize(("other_ms", "best"), [(5.0, OTHER), (9.5, RULE), (20.0, RULE)])
def test_the_rule_stays_where_another_way_is_hardly_faster(other_ms: float, best: Attention) -> None:
    assert chosen(paces(other=other_ms), RULE) == best


def test_a_rule_that_crashes_on_the_machine_is_not_kept() -> None:
    alive = [pace for pace in paces() if pace.attention != OTHER]
    assert chosen(alive, OTHER) in [pace.attention for pace in alive]


def test_what_was_measured_is_used_from_then_on(tmp_path: Path) -> None:
    calibrations, config = Calibrations(tmp_path / "calibrations.json"), EngineConfig()
    assert calibrations.applied(config).attention(gpu=False) == RULE
    assert not calibrations.applied(config).is_calibrated
    assert calibrations.put(config, paces(other=5.0)) == OTHER
    assert calibrations.applied(config).attention(gpu=False) == OTHER
    assert calibrations.applied(config).is_calibrated


def test_the_size_of_steps_that_a_gpu_likes_is_the_smallest_that_is_about_as_fast_as_any() -> None:
    assert best_size({128: 10.0, 256: 12.0, 512: 20.4, 1024: 40.0}) == 512
    assert best_size({128: 10.0, 256: 21.0}) == 128


def test_it_is_kept_beside_the_attention_and_used_where_a_gpu_computes_all_layers(tmp_path: Path) -> None:
    calibrations, config = Calibrations(tmp_path / "calibrations.json"), EngineConfig()
    assert calibrations.put_prefill(config, {128: 10.0, 256: 12.0, 512: 15.0, 1024: 20.0}) == 1024
    assert calibrations.put(config, paces(other=5.0)) == OTHER
    measured = calibrations.applied(config)
    assert (measured.measured, measured.offloaded.prefill_tokens_alone) == (OTHER, 1024)
    assert measured.prefill_tokens_alone == config.prefill_tokens_alone
    assert calibrations.put_prefill(config, {128: 1.0, 256: 4.0}) == 128
    assert calibrations.get(config) == OTHER and calibrations.applied(config).offloaded.prefill_tokens_alone == 128


def test_what_somebody_chose_stays() -> None:
    config = EngineConfig(kv_layout="streams", measured=OTHER)
    assert config.is_calibrated and config.attention(gpu=False) == RULE


@pytest.mark.parametrize("other", [EngineConfig(threads=77), EngineConfig(model_path=DRAFT_MODEL)])
def test_another_question_has_no_answer_yet(tmp_path: Path, other: EngineConfig) -> None:
    calibrations = Calibrations(tmp_path / "calibrations.json")
    calibrations.put(EngineConfig(), paces(other=5.0))
    assert calibrations.get(other) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "\0"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "calibrations.json"
    file.write_text(text)
    assert Calibrations(file).get(EngineConfig()) is None
    Calibrations(file).put(EngineConfig(), paces(other=5.0))
    assert Calibrations(file).get(EngineConfig()) == OTHER


def test_a_damaged_entry_is_as_good_as_none(tmp_path: Path) -> None:
    file = tmp_path / "calibrations.json"
    Calibrations(file).put(EngineConfig(), paces(other=5.0))
    file.write_text(file.read_text().replace("unified", "sideways"))
    assert Calibrations(file).get(EngineConfig()) is None


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    calibrations = Calibrations(tmp_path / "calibrations.json")
    for threads in range(1, KEPT_MAX + 3):
        calibrations.put(EngineConfig(threads=threads, model_path=CHAT_MODEL), paces(other=5.0))
    assert calibrations.get(EngineConfig(threads=2)) is None
    assert calibrations.get(EngineConfig(threads=3)) == OTHER


def test_a_folder_that_cannot_be_written_to_is_no_obstacle(tmp_path: Path) -> None:
    assert Calibrations(tmp_path / "nowhere" / "calibrations.json").put(EngineConfig(), paces(other=5.0)) == OTHER


@pytest.mark.parametrize(
    ("free", "gpu", "safe"), [(8 * 2**30, False, True), (10**8, False, False), (8 * 2**30, True, False)]
)
def test_what_nobody_asked_for_takes_no_memory_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, free: int, gpu: bool, safe: bool
) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: free)
    monkeypatch.setattr(calibration, "has_gpu", lambda: gpu)
    assert affordable(EngineConfig()) is safe


def test_a_gpu_that_computes_no_layer_keeps_nobody_from_measuring_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 8 * 2**30)
    monkeypatch.setattr(calibration, "has_gpu", lambda: True)
    assert affordable(EngineConfig(gpu_layers=0)) and not affordable(EngineConfig())
