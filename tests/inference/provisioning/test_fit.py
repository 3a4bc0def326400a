"""What every preset is served with on small machines; and what holds for any machine, any model and any wish."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.attention import Attention
from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.config import ADJUSTABLE, PREFILL_TOKENS_GPU, EngineConfig
from inference.kvcache.host_cache import DEFAULT_TOKENS
from inference.llama import LlamaModel
from inference.provisioning.catalogue import PRESETS, preset
from inference.provisioning.fit import (
    ALL_LAYERS,
    CONTEXT_FLOOR,
    Allowance,
    CannotServe,
    allow,
    are_all,
    gpu_layers,
    here,
    layers_that_fit,
    rungs,
    split,
)
from inference.provisioning.machine import Room
from inference.provisioning.memory import Footprint, Proportions
from tests.inference.hybrids import HEAD, KV_HEADS, WINDOW, write_hybrid

GB = 10**9
FREE_SHARE = 0.8  # of a laptop's memory, with a desktop and a browser on it
WANTED = EngineConfig(adjustable=ADJUSTABLE)
CHAT = [entry for entry in PRESETS if "not for chat" not in entry.note]

LAPTOPS_GB = (4, 8, 16, 24)
SERVED = {  # on each of them
    "smollm2-135m": ("8 x 8192", "8 x 8192", "8+4 x 8192", "8+8 x 8192"),
    "qwen3-0.6b": ("2 x 4096", "8 x 4096", "8 x 8192", "8 x 8192"),
    "qwen3-1.7b": ("1 x 4096 q8_0", "5 x 4096", "8 x 8192", "8 x 8192"),
    "qwen3-4b": ("no", "3 x 4096", "8 x 6144", "8 x 8192"),
    "qwen3-4b-instruct": ("no", "3 x 4096", "8 x 6144", "8 x 8192"),
    "qwen3-8b": ("no", "no", "8 x 4096", "8 x 8192"),
    "qwen3-14b": ("no", "no", "1 x 4096", "8 x 5120"),
    "qwen3-30b-a3b-instruct": ("no", "no", "no", "no"),
    "llama-3.2-1b": ("6 x 4096", "8 x 8192", "8+2 x 8192", "8+4 x 8192"),
    "llama-3.2-3b": ("1 x 4096 q8_0", "5 x 4096", "8 x 8192", "8 x 8192"),
    "llama-3.1-8b": ("no", "1 x 4096 q8_0", "8 x 4608", "8 x 8192"),
    "gemma-3-270m": ("8 x 8192", "8 x 8192", "8+8 x 8192", "8+8 x 8192"),
    "gemma-3-4b": ("no", "8 x 4096 windowed", "8 x 8192 windowed", "8 x 8192"),
    "smollm3-3b": ("1 x 4096", "8 x 4096", "8 x 8192", "8 x 8192"),
    "phi-4-mini": ("no", "3 x 4096", "8 x 7168", "8 x 8192"),
    "granite-4.0-micro": ("1 x 4096 q8_0", "6 x 4096", "8 x 8192", "8 x 8192"),
    "qwen3.5-4b": ("no", "8 x 5120", "8 x 8192", "8+4 x 8192"),
    "granite-4.0-h-tiny": ("no", "4 x 4096", "8+8 x 8192", "8+8 x 8192"),
    "lfm2-1.2b": ("8 x 8192", "8+4 x 8192", "8+8 x 8192", "8+8 x 8192"),
    "gpt-oss-20b": ("no", "no", "no", "8 x 8192"),
    "mistral-7b": ("no", "1 x 4096", "8 x 5120", "8 x 8192"),
}
NEED = Footprint(weights=8 * GB, kv_cache=GB, working=0, draft=0, parked_max=0)  # of 8 layers and the output


def of(name: str) -> Proportions:
    entry = preset(name)
    assert entry is not None
    return entry.proportions


def allowed(name: str, room: Room, wanted: EngineConfig = WANTED) -> EngineConfig | None:
    try:
        return allow(wanted, of(name), None, room).config
    except CannotServe:
        return None


def served(config: EngineConfig | None) -> str:
    if config is None:
        return "no"
    kept = f"+{config.resident}" if config.resident else ""
    less = f"{' q8_0' if config.kv_type == 'q8_0' else ''}{' windowed' if config.windowed else ''}"
    return f"{config.parallel}{kept} x {config.context}{less}"


@pytest.mark.parametrize("name", [entry.name for entry in CHAT])
def test_a_preset_is_served_as_far_as_a_laptop_allows(name: str) -> None:
    assert tuple(served(allowed(name, Room(int(gb * FREE_SHARE * GB)))) for gb in LAPTOPS_GB) == SERVED[name]


@pytest.mark.parametrize(
    ("name", "gpu_gb", "expected", "layers"),
    [
        ("qwen3-8b", 4, "8 x 4096", 11),  # what nobody is served with pushes no layer out
        ("qwen3-8b", 8, "2 x 4096", -1),
        ("qwen3-8b", 12, "8 x 4096", -1),
        ("qwen3-8b", 24, "8+4 x 8192", -1),
        ("qwen3-4b", 12, "8 x 6144", -1),
    ],
)
def test_on_a_gpu_conversations_give_way_before_layers(name: str, gpu_gb: int, expected: str, layers: int) -> None:
    config = allowed(name, Room(32 * GB, int(gpu_gb * 0.93 * GB)))
    assert config is not None and (served(config), config.gpu_layers) == (expected, layers)
    steps = PREFILL_TOKENS_GPU if layers < 0 else EngineConfig().prefill_tokens_alone
    assert config.prefill_tokens_alone == steps


def test_what_a_gpu_does_not_hold_must_fit_the_host() -> None:
    assert allowed("qwen3-14b", Room(2 * GB, 4 * GB)) is None
    assert allowed("qwen3-14b", Room(2 * GB, 14 * GB)) is not None


def test_idle_conversations_take_what_was_given_or_set_but_little_of_a_laptop() -> None:
    """The KV cache is occupied from the start, and a state comes back from host memory at once."""
    small, free = "smollm2-135m", Room(6 * GB)
    assert served(allowed(small, free)) == "8 x 8192"
    assert served(allowed(small, Room(6 * GB, given=6 * GB))) == "8+8 x 8192"
    assert served(allowed(small, free, replace(WANTED, adjustable=ADJUSTABLE - {"resident"}))) == "8+8 x 8192"
    assert served(allowed(small, free, replace(WANTED, context=2048))) == "8+8 x 2048"


def test_the_bundled_model_gets_all_it_wants_where_anything_runs() -> None:
    """And a draft its share."""
    allowance = here(replace(WANTED, draft_path=DRAFT_MODEL, memory_bytes_max=GB))
    assert not allowance.is_less and allowance.reason == ""
    assert served(allowance.config) == "8+8 x 2048"


def test_windows_are_all_that_is_held_before_the_context_is_cut_unless_somebody_said_otherwise() -> None:
    room, gemma = Room(int(16 * FREE_SHARE * GB)), of("gemma-3-4b")
    allowance = allow(WANTED, gemma, None, room)
    assert served(allowance.config) == "8 x 8192 windowed" and "--kv-windows" in allowance.reason
    whole = allow(replace(WANTED, adjustable=ADJUSTABLE - {"windowed"}), gemma, None, room)
    assert served(whole.config) == "8 x 6656"
    assert served(allow(WANTED, replace(gemma, windowed=0), None, room).config) == "8 x 6656"


@pytest.mark.parametrize(("layout", "cells"), [("streams", 3 * 512), ("unified", 512)])
def test_layers_with_a_window_hold_what_llama_cpp_gives_them(layout: str, cells: int, tmp_path: Path) -> None:
    """As it told for this model: one of four layers holds all tokens."""
    path = write_hybrid(tmp_path / "gemma3.gguf", "gemma3")
    config = EngineConfig(model_path=path, context=2048, parallel=2, resident=1, kv_layout=layout)
    with closing(LlamaModel.load(path, weights=False)) as model:
        proportions = Proportions.of(model)
    assert (proportions.window, proportions.windowed) == (WINDOW, 3)
    whole, less = (Footprint.of(proportions, replace(config, windowed=each)).kv_cache for each in (False, True))
    token_bytes = KV_HEADS * 2 * HEAD * 2
    assert (whole, less) == (4 * 3 * 2048 * token_bytes, (3 * 2048 + 3 * cells) * token_bytes)


@pytest.mark.parametrize(
    ("architecture", "kv_mib", "state_mib"), [("qwen35", 1.5, 0.17), ("granitehybrid", 1.5, 0.17), ("lfm2", 0.75, 0.0)]
)
def test_recurrent_layers_hold_a_state_of_each_slot_and_no_tokens(
    architecture: str, kv_mib: float, state_mib: float, tmp_path: Path
) -> None:
    """As llama.cpp told for these models: one of four layers holds tokens."""
    path = write_hybrid(tmp_path / "hybrid.gguf", architecture)
    with closing(LlamaModel.load(path, weights=False)) as model:
        proportions = Proportions.of(model)
    held = 2 * proportions.kv_numbers * 3 * 2048
    need = Footprint.of(proportions, EngineConfig(model_path=path, context=2048, parallel=2, resident=1))
    assert (held / 2**20, round((need.kv_cache - held) / 2**20, 2)) == (kv_mib, state_mib)


def test_a_model_like_its_draft_is_served_with_fewer_conversations() -> None:
    room = Room(20 * GB, given=20 * GB)
    alone = allow(WANTED, of("qwen3-4b"), None, room).config
    drafting = allow(WANTED, of("qwen3-4b"), of("qwen3-0.6b"), room).config
    assert drafting.slots < alone.slots


def test_what_is_less_than_usual_says_so_and_why() -> None:
    allowance = allow(WANTED, of("qwen3-4b"), None, Room(6 * GB))
    assert str(allowance) == "2 streams of 4096 tokens in f16"
    assert allowance.reason == (
        "8 streams and 8 resident slots of 8192 tokens in f16 would take 22.7 GB; "
        "4.9 GB of the 6.0 GB of memory that are free may be used; "
        "to choose otherwise, set --streams, --resident, --context or --kv-type"
    )


def test_a_refusal_says_what_is_needed_what_is_there_and_which_flags_help() -> None:
    fixed = replace(WANTED, parallel=4, adjustable=ADJUSTABLE - {"parallel"})
    with pytest.raises(CannotServe) as refusal:
        allow(fixed, of("qwen3-8b"), of("qwen3-0.6b"), Room(4 * GB))
    said = str(refusal.value)
    assert "4 streams of 4096 tokens in q8_0 needs" in said and "weights 5.0 GB, KV cache 1.3 GB" in said
    assert "3.1 GB of the 4.0 GB of memory that are free may be used" in said
    for flag in ("--context", "--streams", "--draft", "--memory-mb"):
        assert flag in said
    assert "--resident" not in said and "--kv-type" not in said  # they are as low as they get


def test_flash_attention_that_somebody_turned_off_rules_out_quantised_values() -> None:
    without = replace(WANTED, flash_attention="off")
    assert served(allowed("qwen3-1.7b", Room(int(3.2 * GB)))) == "1 x 4096 q8_0"
    assert allowed("qwen3-1.7b", Room(int(3.2 * GB)), without) is None


def test_quantised_values_bring_flash_attention_whatever_was_measured() -> None:
    measured = Attention(unified=True, flash=False)
    config = EngineConfig(kv_type="q8_0", measured=measured)
    assert config.attention(gpu=False) == Attention(unified=False, flash=True) and config.is_calibrated
    assert EngineConfig(measured=measured).attention(gpu=False) == measured


def test_a_head_that_no_block_divides_is_not_quantised() -> None:
    odd = replace(of("qwen3-1.7b"), key=72, value=72)
    assert not odd.takes_quantised
    assert {step.kv_type for step in rungs(WANTED, takes_quantised=False)} == {"f16"}
    with pytest.raises(CannotServe, match="leave out --kv-type"):
        allow(replace(WANTED, kv_type="q8_0"), odd, None, Room(64 * GB))


def test_other_models_of_the_process_take_their_part() -> None:
    free = 8 * GB
    assert Room(free, beside=GB).host == Room(free).host - GB


def test_what_a_gpu_in_the_cpu_holds_is_not_given_to_conversations_as_well() -> None:
    discrete, shared = Room(12 * GB, 11 * GB), Room(12 * GB, 11 * GB, gpu_own=0)
    apart, together = (allow(WANTED, of("qwen3-4b"), None, room) for room in (discrete, shared))
    taken = [split(each.need, of("qwen3-4b").layers, ALL_LAYERS) for each in (apart, together)]
    assert sum(taken[0]) > discrete.host >= sum(taken[1])
    assert allowed("qwen3-8b", Room(6 * GB, 11 * GB)) and not allowed("qwen3-8b", Room(6 * GB, 11 * GB, gpu_own=0))
    assert allowed("qwen3-8b", Room(6 * GB, 11 * GB, gpu_own=10 * GB))


models = st.sampled_from([entry.proportions for entry in CHAT])
wishes = st.builds(
    EngineConfig,
    parallel=st.integers(1, 32),
    resident=st.integers(0, 32),
    context=st.sampled_from([0, 512, 4096, 5000, 16_384]),
    parked_bytes_max=st.sampled_from([0, GB // 2]),
    flash_attention=st.sampled_from(["auto", "off", "on"]),
    gpu_layers=st.sampled_from([-1, 0, 10, 99]),
    adjustable=st.frozensets(st.sampled_from(sorted(ADJUSTABLE))),
)
free_bytes = st.integers(0, 64 * GB)
owns = st.sampled_from([0, 4 * GB, float("inf")])
rooms = st.builds(Room, free_bytes, st.none() | free_bytes, given=st.sampled_from([0, 5 * GB]), gpu_own=owns)


def attempt(wanted: EngineConfig, model: Proportions, room: Room) -> Allowance | None:
    try:
        return allow(wanted, model, None, room)
    except CannotServe:
        return None


@given(wishes, models, rooms)
def test_no_allowance_takes_more_than_there_is(wanted: EngineConfig, model: Proportions, room: Room) -> None:
    if allowance := attempt(wanted, model, room):
        gpu = room.gpu_free is not None
        need = Footprint.of(model, allowance.config, gpu=gpu)
        on_host, on_gpu = split(need, model.layers, allowance.config.gpu_layers if gpu else 0)
        assert room.left_on_host(on_host, on_gpu) >= 0 and on_gpu <= room.gpu


@given(wishes, models, rooms)
def test_what_people_set_is_kept_or_refused(wanted: EngineConfig, model: Proportions, room: Room) -> None:
    if allowance := attempt(wanted, model, room):
        config, all_of_it = allowance.config, allowance.wanted
        for name in ADJUSTABLE - wanted.adjustable:
            assert getattr(config, name) == getattr(all_of_it, name)
        assert wanted.gpu_layers in (-1, config.gpu_layers)
        assert config.parallel >= 1 and config.context >= min(CONTEXT_FLOOR, all_of_it.context)
        assert config.context <= all_of_it.context and config.slots <= wanted.slots


@given(wishes, models, free_bytes, free_bytes)
def test_more_memory_never_gives_less(wanted: EngineConfig, model: Proportions, one: int, other: int) -> None:
    small, large = (attempt(wanted, model, Room(free)) for free in sorted((one, other)))
    if small:
        assert large is not None
        for name in ("resident", "context", "parallel", "parked_bytes_max"):
            if small.config.kv_type == large.config.kv_type:
                assert getattr(small.config, name) <= getattr(large.config, name)
        assert (small.config.kv_type, large.config.kv_type) != ("f16", "q8_0")


@given(models, free_bytes, free_bytes)
def test_a_larger_gpu_never_gets_fewer_layers(model: Proportions, one: int, other: int) -> None:
    small, large = (attempt(WANTED, model, Room(64 * GB, free)) for free in sorted((one, other)))
    assert small is not None and large is not None
    fewer, more = (
        model.layers + 1 if each.config.gpu_layers < 0 else each.config.gpu_layers for each in (small, large)
    )
    assert fewer <= more


def test_parked_conversations_get_of_what_is_left_what_suits_the_model() -> None:
    plenty, tight, model = Room(200 * GB), Room(13 * GB), of("qwen3-4b")
    token_bytes = model.kv_numbers * 2
    ample, scarce = allow(WANTED, model, None, plenty), allow(WANTED, model, None, tight)
    assert ample.config.parked_bytes_max == DEFAULT_TOKENS * token_bytes and not ample.is_less
    assert scarce.config.parked_bytes_max == WANTED.parked_bytes_max
    said = replace(WANTED, adjustable=ADJUSTABLE - {"parked_bytes_max"})
    assert allow(said, model, None, plenty).config.parked_bytes_max == WANTED.parked_bytes_max
    assert allow(WANTED, model, None, Room(None)).config.parked_bytes_max == WANTED.parked_bytes_max


@pytest.mark.parametrize(("room", "offloaded"), [(20, ALL_LAYERS), (9.1, ALL_LAYERS), (8.9, 8), (3.5, 3), (0.5, 0)])
def test_as_many_layers_are_offloaded_as_fit(room: float, offloaded: int) -> None:
    assert layers_that_fit(NEED, 8, room * GB) == offloaded


def test_steps_and_draft_take_room_from_the_layers() -> None:
    need = Footprint(weights=8 * GB, kv_cache=GB, working=GB, draft=2 * GB, parked_max=GB)
    assert layers_that_fit(need, 8, 6.5 * GB) == 3
    assert split(need, 8, 3) == pytest.approx((7 * GB, 6 * GB))
    assert split(need, 8, 0) == (13 * GB, 0)
    assert split(need, 8, ALL_LAYERS) == split(need, 8, 99) == (GB, 12 * GB)


def test_a_kv_cache_that_stays_on_the_host_leaves_room_for_more_layers() -> None:
    beside = replace(NEED, kv_on_host=NEED.kv_cache)
    assert (layers_that_fit(NEED, 8, 6.5 * GB), layers_that_fit(beside, 8, 6.5 * GB)) == (6, 7)
    on_host, on_gpu = split(beside, 8, ALL_LAYERS)
    assert (on_host, on_gpu) == (NEED.kv_cache, NEED.weights)
    config = EngineConfig(context=4096, kv_place="host")
    assert Footprint.of(of("qwen3-4b"), config, gpu=True).kv_on_host > GB


def test_a_gpu_without_memory_gets_nothing() -> None:
    assert layers_that_fit(NEED, 8, 0) == 0


@pytest.mark.parametrize(("offloaded", "all_of_them"), [(ALL_LAYERS, True), (9, True), (8, False), (0, False)])
def test_the_output_is_one_more_layer(offloaded: int, all_of_them: bool) -> None:
    assert are_all(offloaded, 8) is all_of_them


def test_a_gpu_that_computes_all_layers_gets_longer_bites_of_prompts() -> None:
    config = EngineConfig(prefill_tokens_alone=256)
    assert config.offloaded.prefill_tokens_alone == 512 and config.offloaded.rows_max == config.rows_max + 256
    assert EngineConfig(prefill_tokens_alone=600).offloaded.prefill_tokens_alone == 600


def test_what_was_configured_holds() -> None:
    assert gpu_layers(EngineConfig(model_path=CHAT_MODEL, gpu_layers=3)) == 3
