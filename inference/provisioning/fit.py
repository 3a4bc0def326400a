"""Fits a configuration to the memory of this machine: streams, context, parked conversations, and layers on the GPU.
Pure except for `here` and `gpu_layers`, which query the machine.

Settings of the user are kept or refused. Of the others, the least important is reduced first: the slots of idle
conversations (they are restored from host memory at a thousandth of the cost of prefill), then what layers with a
sliding window hold beside the tokens in it (prompts then go on from checkpoints), then context beyond what an agent
needs, then streams, then the memory for parked conversations, and last the precision of keys and values. On a GPU
all of these are reduced before a single layer is: a layer computed by the CPU slows every token. On a CPU, slots of
idle conversations leave most of the memory to the other programs of a laptop, even where they would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from math import inf, isinf
from pathlib import Path
from typing import Any

from inference.attention import F16, Q8_0
from inference.config import ADJUSTABLE, EngineConfig
from inference.errors import InferenceError
from inference.kvcache.host_cache import default_bytes
from inference.llama import LlamaModel, are_loaded, has_gpu
from inference.provisioning.machine import Room, room_of
from inference.provisioning.memory import Footprint, Proportions, in_words

# Instructions, tools, passages and a question fit 2,048 tokens, as the bundled model shows; the rest is for more turns.
CONTEXT_FLOOR = 4096
CONTEXT_STEP = 512  # about a question and its answer
ALL_LAYERS = -1
# Of the free memory of a CPU, for a KV cache with slots of idle conversations: it is occupied from the start.
IDLE_KV_SHARE = 0.25


def gpu_layers(config: EngineConfig) -> int:
    """Layers to offload, -1 for all: as configured, or what fits. Raises ModelNotLoaded."""
    if config.gpu_layers >= 0 or not has_gpu():
        return config.gpu_layers
    with closing(LlamaModel.load(config.model_path, weights=False)) as model:
        proportions = Proportions.of(model)
    need = Footprint.of(proportions, config.offloaded, gpu=True)
    room = room_of(config)
    return layers_that_fit(need, proportions.layers, room.gpu, room.gpus)


def fewer_layers(config: EngineConfig, tried: int) -> int:
    """How many layers to try after `tried` (-1: all) did not fit: three quarters, which finally reaches none."""
    if tried < 0:
        with closing(LlamaModel.load(config.model_path, weights=False)) as model:
            tried = model.kv_shape[0] + 1
    return tried * 3 // 4


def layers_that_fit(need: Footprint, layers: int, gpu_bytes: float, gpus: int = 1) -> int:
    """-1 if all of a model's layers fit into `gpu_bytes`, next to their share of the KV cache. Of several GPUs, each
    holds the intermediate results of a step, and may leave room for half a layer unused."""
    left = gpu_bytes - need.draft - need.working * gpus
    each = need.divided / (layers + 1)  # llama.cpp counts the output as one more layer
    fitting = max(0, int(left / each) - (gpus - 1))
    return ALL_LAYERS if fitting > layers else fitting


def are_all(offloaded: int, layers: int) -> bool:
    return offloaded == ALL_LAYERS or offloaded > layers


def split(need: Footprint, layers: int, offloaded: int, gpus: int = 1) -> tuple[float, float]:
    """Bytes on the host and on the GPUs if these have that many layers; draft model and steps go with the first one."""
    if not offloaded:
        return float(need.total + need.parked_max), 0.0
    share = 1.0 if are_all(offloaded, layers) else offloaded / (layers + 1)
    on_host = need.parked_max + need.kv_on_host + (1 - share) * need.divided
    return on_host, share * need.divided + need.working * gpus + need.draft


class CannotServe(InferenceError):
    """Not even the smallest acceptable configuration fits: the `reason`, and in `todo` what the user can do."""

    def __init__(self, reason: str, todo: str, need: Footprint) -> None:
        super().__init__(f"{reason}: {todo}")
        self.reason, self.todo, self.need = reason, todo, need


@dataclass(frozen=True, slots=True)
class Allowance:
    """`config` is what will be served, `wanted` what would be with more memory; and what each of them needs."""

    config: EngineConfig
    wanted: EngineConfig
    need: Footprint
    need_wanted: Footprint
    room: Room
    layers: int = 0  # of the model

    @property
    def is_less(self) -> bool:
        return any(getattr(self.config, name) != getattr(self.wanted, name) for name in {*ADJUSTABLE, "gpu_layers"})

    @property
    def reason(self) -> str:
        """Why it is less, as one line for the user; empty if it is not."""
        if not self.is_less:
            return ""
        wanted = self.need_wanted.total + self.need_wanted.parked_max
        flags = "--streams, --resident, --context" + (", --kv-windows" if self.config.windowed else "")
        change = f"to choose otherwise, set {flags} or --kv-type"
        return f"{described(self.wanted)} would take {in_words(wanted)}; {self.room}; {change}"

    def __str__(self) -> str:
        layers = f", {self.config.gpu_layers} layers on the GPU" if self.config.gpu_layers > 0 else ""
        return f"{described(self.config)}{layers}"

    @property
    def where(self) -> str:
        """What is placed on the GPUs, as one line for the user; empty without any."""
        if self.room.gpu_free is None or not self.config.gpu_layers:
            return ""
        offloaded = self.layers + 1 if are_all(self.config.gpu_layers, self.layers) else self.config.gpu_layers
        share = offloaded / (self.layers + 1)
        there = {"weights": self.need.weights, "KV cache": self.need.kv_cache - self.need.kv_on_host}
        listed = " and ".join(f"{in_words(int(size * share))} of the {name}" for name, size in there.items())
        return f"{offloaded} of {self.layers + 1} layers on the GPU, with {listed}"

    @property
    def text(self) -> str:
        """The whole description, for reports."""
        return "; ".join(filter(None, (f"{self}: {self.need}", self.reason)))


def allow(wanted: EngineConfig, model: Proportions, draft: Proportions | None, room: Room) -> Allowance:
    """The largest configuration up to `wanted` that fits. Raises CannotServe."""
    wanted = replace(wanted, context=wanted.context_of(model.context))
    takes_quantised = model.takes_quantised and (draft is None or draft.takes_quantised)
    on_gpu = room.gpu_free is not None

    def need(config: EngineConfig) -> Footprint:
        return Footprint.of(model, config, draft, gpu=on_gpu)

    if wanted.is_quantised and not takes_quantised:
        reason = f"{wanted.model_path.name} or its draft has heads that a {wanted.kv_type} KV cache cannot store"
        raise CannotServe(reason, "leave out --kv-type", need(wanted))
    steps = list(rungs(wanted, takes_quantised=takes_quantised, has_windows=model.windowed > 0))
    for config in _placed(steps, model.layers, need, room):
        needed = need(config)
        if config.resident and "resident" in wanted.adjustable and needed.kv_cache > _idle_kv_max(room):
            continue
        on_host, on_device = split(needed, model.layers, config.gpu_layers if on_gpu else 0, room.gpus)
        left = room.left_on_host(on_host, on_device)
        if left >= 0 and on_device <= room.gpu:
            config = _with_more_parked(config, wanted, needed, left)
            parked_max = max(wanted.parked_bytes_max, config.parked_bytes_max)
            wanted = replace(wanted, parked_bytes_max=parked_max)
            return Allowance(config, wanted, need(config), need(wanted), room, model.layers)
    raise _refusal(steps[-1], need(steps[-1]), room, takes_quantised=takes_quantised)


def _idle_kv_max(room: Room) -> float:
    """Bytes of a KV cache with slots of idle conversations. Memory of a GPU, and what was given, has no other use."""
    return inf if room.gpu_free is not None or room.given else IDLE_KV_SHARE * room.left_on_host(0, 0)


def here(wanted: EngineConfig, known: Proportions | None = None) -> Allowance:
    """The same for a configuration's files and this machine. `known` are those of the model, if they need not be read.

    Raises ModelNotLoaded, CannotServe.
    """
    with ExitStack() as stack:

        def proportions(path: Path, known: Proportions | None = None) -> Proportions:
            found = known or Proportions.of(stack.enter_context(closing(LlamaModel.load(path, weights=False))))
            return replace(found, weight_bytes=0) if are_loaded(path) else found

        model = proportions(wanted.model_path, known)
        draft = proportions(wanted.draft_path) if wanted.draft_path else None
    return allow(wanted, model, draft, room_of(wanted))


def rungs(wanted: EngineConfig, *, takes_quantised: bool, has_windows: bool = False) -> Iterator[EngineConfig]:
    """From the full configuration down to the smallest, each with one reduction more than the one before.

    Slots are reduced several at a time: states on disk depend on the number of slots (see inference.llama.state), and
    slightly more or less free memory at the next start should not invalidate them.
    """
    config, parked = wanted, wanted.parked_bytes_max
    ladder: dict[str, Iterable[int]] = {
        "resident": _halves(wanted.resident),
        "windowed": (True,) if has_windows else (),
        "context": range((wanted.context - 1) // CONTEXT_STEP * CONTEXT_STEP, CONTEXT_FLOOR - 1, -CONTEXT_STEP),
        "parallel": _three_quarters(wanted.parallel),
        "parked_bytes_max": (parked // 2, parked // 4, 0) if parked else (),
    }
    yield config
    for name, values in ladder.items():
        for value in values if name in wanted.adjustable else ():
            changes: dict[str, Any] = {name: value}
            yield (config := replace(config, **changes))
    if takes_quantised and "kv_type" in wanted.adjustable and _may_quantise(wanted):
        yield from rungs(replace(wanted, kv_type=Q8_0), takes_quantised=False, has_windows=has_windows)


def _may_quantise(config: EngineConfig) -> bool:
    return config.kv_type == F16 and config.flash_attention != "off"


def _halves(count: int) -> Iterator[int]:
    while count:
        yield (count := count // 2)


def _three_quarters(count: int) -> Iterator[int]:
    while count > 1:
        yield (count := count - max(1, count // 4))


def _placed(
    steps: list[EngineConfig], layers: int, need: Callable[[EngineConfig], Footprint], room: Room
) -> Iterator[EngineConfig]:
    """The steps with their layers placed: all on the GPU; if no step fits that way, as many as its memory holds."""
    if room.gpu_free is None or steps[0].gpu_layers >= 0:
        yield from (step.offloaded if room.gpu_free and are_all(step.gpu_layers, layers) else step for step in steps)
        return
    yield from (step.offloaded for step in steps)
    least = steps[-1]
    for step in steps:
        if (step.resident, step.context) == (least.resident, least.context):  # more of these would displace layers
            fitting = layers_that_fit(need(step), layers, room.gpu, room.gpus)
            yield replace(step, gpu_layers=layers if fitting == ALL_LAYERS else fitting)


def _with_more_parked(config: EngineConfig, wanted: EngineConfig, need: Footprint, left: float) -> EngineConfig:
    """Give parked conversations their default share of the remaining host memory, unless it was configured."""
    if "parked_bytes_max" not in wanted.adjustable or config.parked_bytes_max < wanted.parked_bytes_max:
        return config
    suits = default_bytes(need.kv_cache / (config.context * config.slots), None if isinf(left) else int(left))
    return replace(config, parked_bytes_max=max(config.parked_bytes_max, suits))


def _refusal(least: EngineConfig, need: Footprint, room: Room, *, takes_quantised: bool) -> CannotServe:
    """`least` is the configuration after every permitted reduction."""
    reason = f"{least.model_path.name} with {described(least)} needs {need}; {room}"
    lowered = {
        "--context": True,
        "--streams": least.parallel > 1,
        "--resident": least.resident > 0,
        "--parked-mb": least.parked_bytes_max > 0,
    }
    todo = [
        "choose a smaller model or quantisation",
        f"lower {', '.join(flag for flag, helps in lowered.items() if helps)}",
        *(["set --kv-type q8_0"] if takes_quantised and _may_quantise(least) else []),
        *(["leave out --draft"] if need.draft else []),
        "raise that limit"
        if room.limit and not room.given
        else f"{'raise' if room.given else 'set'} --memory-mb to the memory that may be used",
    ]
    return CannotServe(reason, f"{', '.join(todo[:-1])} or {todo[-1]}", need)


def described(config: EngineConfig) -> str:
    """What is served, as a phrase for the user."""
    streams = "1 stream" if config.parallel == 1 else f"{config.parallel} streams"
    slots = f"{streams} and {config.resident} resident slots" if config.resident else streams
    windows = " without what lies outside of sliding windows" if config.windowed else ""
    return f"{slots} of {config.context} tokens in {config.kv_type}{windows}"
