"""Every question of the doctor, answered well and badly; and a native crash that harms nobody."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from inference.adapter import Adapter
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL, DRAFT_MODEL, EMBEDDER
from inference.config import ADJUSTABLE, EngineConfig
from inference.errors import InvalidTemplate
from inference.llama import Device, LlamaContext, LlamaModel
from inference.provisioning import catalogue, doctor, machine
from inference.provisioning.calibration import Calibrations
from inference.provisioning.catalogue import PRESETS
from inference.provisioning.doctor import (
    FEATURES,
    Finding,
    Level,
    backend_finding,
    barriers_finding,
    cpu_finding,
    examine,
    file_finding,
    memory_finding,
    model_finding,
    prefill,
    self_test,
    speed_finding,
    threads_finding,
)
from inference.provisioning.isolated_process import Isolated, RunFailed
from inference.provisioning.machine import Room
from inference.provisioning.memory import Footprint, Proportions
from inference.provisioning.speed import SIZES, Barriers, Speed, isolated_stream_speed
from inference.template import INSTEAD
from inference.text_model import TextModel
from tests.inference.adapters import random_changes, write_adapter
from tests.inference.variants import TEMPLATE, write_variant

AVX2_CPU = frozenset(["sse3", "avx2", "fma", "f16c"])
AVX2_BUILD = {"AVX2": "1", "FMA": "1", "F16C": "1", "OPENMP": "1"}
CPU = Device("CPU", "Some processor", False, 16 * 10**9, 8 * 10**9)
GPU = Device("CUDA0", "Some GPU", True, 80 * 10**9, 79 * 10**9)
QWEN = next(preset for preset in PRESETS if preset.name == "qwen3-4b").proportions


def test_a_file_of_the_catalogue_that_differs_in_one_bit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that it computes may still be finite."""
    entry = replace(PRESETS[0], name="mine", file="folder/mine.gguf", sha256=sha256(b"right").hexdigest())
    monkeypatch.setattr(catalogue, "PRESETS", (entry,))
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"right")
    assert file_finding(path).level is Level.OK and "mine in the catalogue" in file_finding(path).text
    path.write_bytes(b"rjght")
    damaged = file_finding(path)
    assert damaged.level is Level.PROBLEM and "firsttoken models pull mine" in damaged.todo
    other = tmp_path / "other.gguf"
    assert file_finding(other) == Finding("file", Level.OK, "the catalogue has no checksum of other.gguf")


@pytest.mark.parametrize("template", ["{{ 'Functions: ' + functions }}", "{% for m in %}"])
def test_a_template_that_takes_no_conversation_is_told_with_a_way_out(
    template: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that does not compile keeps the model from being loaded, which says so too."""
    path = tmp_path / "functions.gguf"
    write_variant(DRAFT_MODEL, path, {TEMPLATE: template})
    model = LlamaModel.load(path, weights=False)
    found = model_finding(model)
    assert found.level is Level.PROBLEM and found.todo == INSTEAD
    fault = "'functions' is undefined" if "functions" in template else "does not compile"
    assert fault in found.text
    with suppress(InvalidTemplate):
        TextModel(model, b"", 512)
        assert fault in caplog.text and INSTEAD in caplog.text
    model.close()


def test_a_build_that_uses_what_the_processor_has_is_fine() -> None:
    finding = cpu_finding("Some processor", AVX2_CPU, AVX2_BUILD)
    assert finding.level is Level.OK and "AVX2, FMA, F16C" in finding.text and not finding.todo


def test_a_build_for_a_lesser_processor_should_be_made_again() -> None:
    finding = cpu_finding("Some processor", AVX2_CPU | {"amx_tile", "amx_int8"}, AVX2_BUILD)
    assert finding.level is Level.WARNING and "not AMX_INT8" in finding.text and "deploy.setup --force" in finding.todo


def test_a_build_for_a_greater_processor_is_a_problem() -> None:
    finding = cpu_finding("Some processor", AVX2_CPU, AVX2_BUILD | {"AVX512": "1"})
    assert finding.level is Level.PROBLEM and "AVX512" in finding.text and finding.todo


def test_an_unknown_processor_is_not_judged() -> None:
    assert cpu_finding("Some processor", frozenset(), AVX2_BUILD).level is Level.OK


def test_features_are_spelled_as_llama_cpp_spells_them() -> None:
    """Its library contains the names of all of them, also of those that this build or CPU lacks."""
    spec = find_spec("llama_cpp")
    assert spec and spec.origin
    library = next(Path(spec.origin).parent.glob("lib/libggml-cpu.*")).read_bytes()
    assert [name for name in FEATURES if f"{name}\0".encode() not in library] == []


def backend_found(found: list[Device], built: list[str], vendors: list[str], **settings: Any) -> Finding:
    return backend_finding(found, built, vendors, EngineConfig(**settings))


def test_an_unused_gpu_is_named_with_the_way_to_use_it() -> None:
    assert backend_found([CPU], ["CPU"], []).level is Level.OK
    unused = backend_found([CPU], ["CPU"], ["AMD"])
    assert "GPU of AMD" in unused.text and "FIRSTTOKEN_BACKEND=auto" in unused.todo
    assert "--gpu-layers" in backend_found([GPU, CPU], ["CUDA", "CPU"], ["NVIDIA"], gpu_layers=0).todo


@pytest.mark.parametrize(("built", "advice"), [("CUDA", "nvidia-smi"), ("Vulkan", "mesa-vulkan-drivers")])
def test_a_build_for_a_gpu_that_finds_none_is_told_what_it_lacks(built: str, advice: str) -> None:
    found = backend_found([CPU], [built, "CPU"], [])
    assert found.level is Level.WARNING and built in found.text and advice in found.todo


def test_the_gpu_that_is_used_is_named_with_its_backend_and_its_memory() -> None:
    used = backend_found([GPU, CPU], ["CUDA", "CPU"], ["NVIDIA"])
    assert used.level is Level.OK and "by CUDA (79.0 GB of 80.0 GB free)" in used.text
    assert used.numbers["gpu_free_bytes"] == 79 * 10**9


def test_steps_of_a_prompt_are_measured_and_the_size_is_kept(tmp_path: Path) -> None:
    config, calibrations = EngineConfig(model_path=DRAFT_MODEL), Calibrations(tmp_path / "calibrations.json")
    finding = prefill(config, calibrations)
    assert finding.level is Level.OK and set(finding.numbers) <= {f"{size}_tokens_ms" for size in SIZES}
    assert finding.text.startswith(f"{calibrations.prefill(config)} tokens a step; ")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    failed = prefill(EngineConfig(model_path=broken), calibrations)
    assert failed.level is Level.WARNING and failed.text.startswith("not measured: ")


def test_steps_are_measured_for_a_gpu_that_computes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "devices", lambda: [CPU])
    assert not doctor._on_gpu(EngineConfig())
    monkeypatch.setattr(doctor, "devices", lambda: [GPU, CPU])
    assert doctor._on_gpu(EngineConfig()) and not doctor._on_gpu(EngineConfig(gpu_layers=0))


def test_gpus_that_share_a_model_are_told_apart_from_those_that_wait() -> None:
    two = [replace(GPU, name=f"CUDA{number}") for number in range(2)]
    small = replace(GPU, name="CUDA2", is_integrated=True)
    both = backend_found([*two, small, CPU], ["CUDA", "CPU"], ["NVIDIA"], gpu_split="layer:3,1").text
    assert "divided by layer:3,1" in both and both.count("free)") == 3
    assert both.index("not used") > both.index("by CUDA")
    one = backend_found([*two, CPU], ["CUDA", "CPU"], ["NVIDIA"], gpu_split="none").text
    assert "divided" not in one and "not used" in one


def test_more_threads_than_cores_are_too_many() -> None:
    assert threads_finding(4, 4, idle=4).level is Level.OK
    assert threads_finding(5, 4, idle=4).level is Level.WARNING


def test_cores_that_other_programs_keep_busy_are_a_warning_that_explains_the_speeds_below() -> None:
    assert threads_finding(2, 2, idle=1.4).level is Level.OK
    assert threads_finding(2, 2, idle=24.0).level is Level.OK  # of a host with more processors
    finding = threads_finding(2, 2, idle=0.0)
    assert finding.level is Level.WARNING and "busy" in finding.text and "again" in finding.todo
    assert 0 <= machine.idle_cores() <= (os.cpu_count() or 1)


def test_threads_that_sleep_at_barriers_are_a_warning_with_the_settings_that_cause_it() -> None:
    assert barriers_finding(Barriers(threads=4, busy=3, resting=0, sleeps=2)).level is Level.OK
    finding = barriers_finding(Barriers(threads=4, busy=3, resting=0, sleeps=150))
    assert finding.level is Level.WARNING and "OMP_WAIT_POLICY" in finding.todo
    assert finding.numbers == {"compute_threads": 4, "sleeps_per_step": 150}


def test_memory_is_told_as_serve_will_use_it() -> None:
    config = EngineConfig(adjustable=ADJUSTABLE)
    finding = memory_finding(config, QWEN, None, Room(12 * 10**9))
    assert finding.level is Level.OK and "8 streams of 5632 tokens in f16" in finding.text
    assert "8 streams and 8 resident slots of 8192 tokens in f16 would take" in finding.text
    assert finding.numbers["available_bytes"] == 12 * 10**9


def test_a_model_that_does_not_fit_is_a_problem_with_the_flags_that_help() -> None:
    finding = memory_finding(EngineConfig(adjustable=ADJUSTABLE), QWEN, None, Room(3 * 10**9))
    assert finding.level is Level.PROBLEM and "2.2 GB of the 3.0 GB" in finding.text
    assert "--context" in finding.todo and "--memory-mb" in finding.todo


def test_memory_of_an_unknown_machine_is_only_stated() -> None:
    finding = memory_finding(EngineConfig(), QWEN, None, Room(None))
    assert finding.level is Level.OK and "8 streams and 8 resident slots" in finding.text


def test_a_model_slower_than_reading_is_a_warning() -> None:
    assert speed_finding(100, 20).level is Level.OK
    assert speed_finding(10, 2).level is Level.WARNING


def test_the_kv_cache_is_as_large_as_foretold() -> None:
    model = LlamaModel.load(CHAT_MODEL)
    config = EngineConfig(parallel=2, resident=1, context=512)
    context = LlamaContext(model, slots=1, context=512, rows_max=256, threads=1)
    context.decode([Chunk(0, 0, [5] * 200)])
    per_token = Footprint.of(Proportions.of(model), config).kv_cache / (3 * 512)
    assert context.save(0).nbytes / 200 == pytest.approx(per_token, rel=0.02)  # the state adds a header and positions
    context.close()
    model.close()


def test_more_context_needs_more_memory() -> None:
    model = LlamaModel.load(CHAT_MODEL, weights=False)
    proportions = Proportions.of(model)
    small = Footprint.of(proportions, config := EngineConfig(context=1024))
    large = Footprint.of(proportions, replace(config, context=2048))
    assert large.kv_cache == 2 * small.kv_cache and large.weights == small.weights == model.weight_bytes


def test_a_draft_needs_memory_of_its_own() -> None:
    model, draft = (Proportions.of(LlamaModel.load(path, weights=False)) for path in (CHAT_MODEL, DRAFT_MODEL))
    alone, together = Footprint.of(model, EngineConfig()), Footprint.of(model, EngineConfig(), draft)
    assert alone.draft == 0
    assert draft.weight_bytes < together.draft == together.total - alone.total < alone.total


def test_a_model_passes_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    """The smallest: each kind of attention takes some two thousand tokens."""
    config = EngineConfig(model_path=DRAFT_MODEL, draft_path=DRAFT_MODEL, threads=1)
    calibrations = Calibrations(tmp_path / "calibrations.json")
    findings = {finding.name: finding for finding in examine(config, calibrations)}
    assert calibrations.applied(config).is_calibrated
    *files, self_tested, speed, attention = findings
    assert files == ["cpu", "backend", "threads", "barriers", "model", "file", "draft", "memory"]
    assert [self_tested, speed, attention] == ["self-test", "speed", "attention"]
    assert len(findings["attention"].numbers) == 4 * 4 and all(ms > 0 for ms in findings["attention"].numbers.values())
    assert findings["self-test"].level is Level.OK and findings["self-test"].text.startswith(
        "1, 5 and 64 rows agree on the "
    )
    assert findings["speed"].numbers["decode_tokens_per_s"] > 0
    assert findings["speed"].numbers["prefill_tokens_per_s"] > 0


def test_a_model_that_cannot_be_opened_ends_the_examination(tmp_path: Path) -> None:
    last = _last(EngineConfig(model_path=tmp_path / "none.gguf"))
    assert last.name == "model" and last.level is Level.PROBLEM and "no model file" in last.text


def test_a_model_that_cannot_chat_is_a_problem() -> None:
    findings = _findings(EngineConfig(model_path=EMBEDDER))
    assert findings["model"].level is Level.PROBLEM and "chat template" in findings["model"].text
    assert "speed" not in findings


def test_a_chat_template_that_cannot_be_used_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaModel, "chat_template", "{% block a %}{% endblock %}")
    with closing(LlamaModel.load(CHAT_MODEL, weights=False)) as model:
        finding = model_finding(model)
    assert finding.level is Level.PROBLEM and "chat template has blocks" in finding.text


def test_a_build_that_fails_the_self_test_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashed(*_: object, **__: object) -> str:
        raise RunFailed("killed by SIGILL", crashed=True)

    monkeypatch.setattr(doctor, "isolated_self_test", crashed)
    last = _last(EngineConfig(threads=1))
    assert (last.name, last.level, last.text) == ("self-test", Level.PROBLEM, "killed by SIGILL")
    assert "deploy.setup --force" in last.todo


def test_a_self_test_that_fails_becomes_a_finding() -> None:
    finding = self_test(EMBEDDER)
    assert finding.level is Level.PROBLEM and "encoder" in finding.text and "models list" in finding.todo


def test_a_native_crash_is_named_by_its_signal() -> None:
    with pytest.raises(RunFailed, match="killed by SIGABRT"):
        Isolated(os.abort, timeout_s=20)()


def gone() -> None:
    """Of a module that does not exist."""


gone.__module__ = "inference.no_such_module"


def test_a_module_that_fails_or_hangs_says_why() -> None:
    with pytest.raises(RunFailed, match="No module named"):
        Isolated(gone, timeout_s=20)()
    with pytest.raises(RunFailed, match="did not finish within"):
        Isolated(self_test, timeout_s=0.001)(CHAT_MODEL)


def test_what_comes_back_is_of_the_type_that_the_function_declares() -> None:
    said = b'a line of the library\n{"prefill": 3, "decode": 2.5}'
    assert isolated_stream_speed.result_in(said) == Speed(3.0, 2.5)
    with pytest.raises(ValueError, match="prefill"):
        isolated_stream_speed.result_in(b'{"prefill": "fast", "decode": 2.5}')


def _findings(config: EngineConfig) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(config, Calibrations(Path("/nowhere/calibrations.json")))}


def _last(config: EngineConfig) -> Finding:
    return list(_findings(config).values())[-1]


def test_an_adapter_of_another_model_is_told_with_what_to_correct(tmp_path: Path) -> None:
    adapter = Adapter(write_adapter(tmp_path / "support.gguf", random_changes(DRAFT_MODEL)))
    assert self_test(DRAFT_MODEL, [adapter]).level is Level.OK
    finding = self_test(CHAT_MODEL, [adapter])
    assert finding.level is Level.PROBLEM and "--lora" in finding.todo
    assert finding.text.startswith("the adapter support.gguf does not fit demo-chat")
