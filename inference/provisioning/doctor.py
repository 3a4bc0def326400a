"""Whether this machine and this build can serve a model: one finding per check, each with what to do about it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from inference.adapter import Adapter
from inference.attention import ALL, Attention
from inference.config import EngineConfig, default_threads
from inference.cores import usable_cores
from inference.errors import InferenceError, InvalidTemplate
from inference.llama import Device, LlamaModel, backends, build_features, computing, devices
from inference.provisioning import machine, selftest
from inference.provisioning.calibration import SLOWDOWN_MIN, Calibrations
from inference.provisioning.catalogue import preset_of
from inference.provisioning.fit import CannotServe, allow
from inference.provisioning.gpus import gpus
from inference.provisioning.isolated_process import Isolated, RunFailed
from inference.provisioning.machine import Room, room_of
from inference.provisioning.memory import Footprint, Proportions, in_words
from inference.provisioning.speed import (
    Barriers,
    Pace,
    fastest,
    isolated_barriers,
    isolated_paces,
    isolated_prefill_steps_ms,
    isolated_stream_speed,
)
from inference.speculative.draft_model import same_vocabulary
from inference.template import INSTEAD, ChatTemplate
from inference.weight_placement import Split

SELF_TEST_TIMEOUT_S = 120.0
OTHER_MODEL = "fetch its file again, or choose another: see `firsttoken models list`"
REBUILD = "rebuild it for this CPU: python3 -m deploy.setup --force"
BUILD = "build for it: FIRSTTOKEN_BACKEND=auto make setup, which says what to install first"
# What a build needs besides itself, by llama.cpp's name of its backend.
DRIVERS = {
    "CUDA": "check whether `nvidia-smi` lists a GPU, and install NVIDIA's driver; a container needs --gpus all",
    "Vulkan": "check whether `vulkaninfo --summary` lists a GPU, and install its driver (Debian: mesa-vulkan-drivers "
    "for AMD and Intel); a user needs the group render, a container --device /dev/dri",
}
NOT_MEASURED = "run it on an idle machine, or choose a smaller model or quantisation"
SLEEPS_MAX = 20  # of compute threads in one step of the bundled model, which has ten times as many barriers
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # change how OpenMP's threads wait
READING_TOKENS_PER_S = 5.0  # slower than reading speed

# Features that matter to llama.cpp's kernels: llama.cpp's name, and the processor's flags.
FEATURES = {
    "AVX2": ("avx2",),
    "FMA": ("fma",),
    "F16C": ("f16c",),
    "AVX512": ("avx512f", "avx512bw", "avx512vl"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "AMX_INT8": ("amx_tile", "amx_int8"),
    "NEON": ("asimd",),
    "DOTPROD": ("asimddp",),
    "MATMUL_INT8": ("i8mm",),
    "SVE": ("sve",),
}


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    level: Level
    text: str
    todo: str = ""  # what to do about it; empty if nothing
    numbers: Mapping[str, float] = field(default_factory=dict)  # machine-readable, with units in the names


def examine(config: EngineConfig, calibrations: Calibrations) -> Iterator[Finding]:
    """Yields each finding as soon as it is known; the last ones load the model and take seconds. Blocks. Measurements
    of attention are kept for the next start."""
    yield cpu_finding(machine.cpu_name(), machine.cpu_features(), build_features())
    yield backend_finding(devices(), backends(), gpus(), config)
    yield threads_finding(config.threads or default_threads(), usable_cores(), machine.idle_cores())
    yield _barriers()
    files = list(_files(config))
    yield from files
    if any(finding.level is Level.PROBLEM for finding in files):
        return
    yield (tested := self_test(config.model_path, config.adapters))
    if tested.level is Level.PROBLEM:  # it would crash again, and be blamed on the model
        return
    yield speed(config)
    yield attention(config, calibrations)
    if _on_gpu(config):
        yield prefill(config, calibrations)


def _files(config: EngineConfig) -> Iterator[Finding]:
    """The model, its draft model, and the memory that they take together."""
    with ExitStack() as stack:

        def opened(path: Path) -> LlamaModel:
            return stack.enter_context(closing(LlamaModel.load(path, weights=False)))

        try:
            model = opened(config.model_path)
            draft = opened(config.draft_path) if config.draft_path else None
        except InferenceError as error:
            yield Finding("model", Level.PROBLEM, str(error), "choose another: see `firsttoken models list`")
            return
        yield model_finding(model)
        yield file_finding(config.model_path)
        if draft:
            yield draft_finding(draft, model)
        yield memory_finding(config, Proportions.of(model), Proportions.of(draft) if draft else None, room_of(config))


def cpu_finding(name: str, features: frozenset[str], build: Mapping[str, str]) -> Finding:
    """Compare the processor's features with those that the library was compiled for."""
    built = {feature for feature in FEATURES if build.get(feature, "0") != "0"}
    present = {feature for feature, needs in FEATURES.items() if features.issuperset(needs)}
    used = f"{name}; the build uses {', '.join(f for f in FEATURES if f in built) or 'none of its extensions'}"
    if not features:  # unknown
        return Finding("cpu", Level.OK, used)
    if lacking := built - present:
        text = f"{name} has no {', '.join(sorted(lacking))}, which the build uses: it may crash at any step"
        return Finding("cpu", Level.PROBLEM, text, REBUILD)
    if unused := present - built:
        text = f"{used}, not {', '.join(f for f in FEATURES if f in unused)}"
        return Finding("cpu", Level.WARNING, text, REBUILD)
    return Finding("cpu", Level.OK, used)


def backend_finding(
    found: Sequence[Device], built: Sequence[str], vendors: Sequence[str], config: EngineConfig
) -> Finding:
    """`built`: the backends of the build; `vendors`: those of the GPUs that the kernel drives."""
    gpus = [device for device in found if device.is_gpu]
    if not gpus:
        return _without_gpu(built, vendors)
    numbers = {"gpu_free_bytes": sum(gpu.free_bytes for gpu in gpus)}
    if config.gpu_layers == 0:
        text = f"GPU not used: {', '.join(map(_described, gpus))}"
        return Finding("backend", Level.WARNING, text, "remove --gpu-layers 0", numbers)
    ours = computing(found, Split.parse(config.gpu_split))
    rest = [gpu for gpu in gpus if gpu not in ours]
    parts = [f"GPU: {', '.join(map(_described, ours))}"]
    if rest:
        parts.append(f"not used: {', '.join(map(_described, rest))}")
    if len(ours) > 1:
        parts.append(f"divided by {config.gpu_split}")
    return Finding("backend", Level.OK, "; ".join(parts), numbers=numbers)


def _without_gpu(built: Sequence[str], vendors: Sequence[str]) -> Finding:
    beyond = [name for name in built if name in DRIVERS]
    if beyond:
        text = f"CPU only: the build is for {beyond[0]}, which finds no device"
        return Finding("backend", Level.WARNING, text, DRIVERS[beyond[0]])
    if vendors:
        text = f"CPU only, although the machine has a GPU of {' and '.join(vendors)}"
        return Finding("backend", Level.WARNING, text, BUILD)
    return Finding("backend", Level.OK, "CPU, the only device of this machine")


def _described(gpu: Device) -> str:
    """A GPU without memory of its own reports that of the CPU."""
    room = f"{in_words(gpu.free_bytes)} of {in_words(gpu.memory_bytes)} free"
    return f"{gpu.description} by {gpu.backend} ({room})"


def threads_finding(threads: int, cores: int, idle: float) -> Finding:
    """`idle`: the processors that no program used in the last minute."""
    numbers = {"threads": threads, "cores": cores, "idle_cores": idle}
    if threads > cores:
        text = f"{threads} threads on {cores} cores slow each other down"
        todo = f"set --threads {default_threads()} or leave it out"
        return Finding("threads", Level.WARNING, text, todo, numbers)
    text = f"{threads} of {cores} cores compute"
    if idle < threads / 2:
        text = f"{text}, and other programs keep {'them' if idle < 1 else 'most of them'} busy"
        todo = "run this again when they have ended: all speeds below are too low, and measuring takes long"
        return Finding("threads", Level.WARNING, text, todo, numbers)
    return Finding("threads", Level.OK, text, numbers=numbers)


def _barriers() -> Finding:
    try:
        return barriers_finding(isolated_barriers())
    except RunFailed as failure:
        return Finding("barriers", Level.PROBLEM, str(failure), REBUILD)


def barriers_finding(found: Barriers) -> Finding:
    numbers = {"compute_threads": 1 + found.busy, "sleeps_per_step": found.sleeps}
    if found.sleeps > SLEEPS_MAX:
        text = f"the compute threads sleep {found.sleeps} times in each step while they wait for each other"
        todo = f"unset {', '.join(WAIT_VARIABLES)}; if none is set, other programs keep the cores busy: run this again"
        return Finding("barriers", Level.WARNING, text, todo, numbers)
    return Finding("barriers", Level.OK, "compute threads wait for each other without sleeping", numbers=numbers)


def model_finding(model: LlamaModel) -> Finding:
    text = f"{model.name}, {model.quantisation}, {_count(model.parameters)} parameters"
    if model.chat_template is None:
        return Finding("model", Level.PROBLEM, f"{text}: no chat template", "use an instruct model of the same family")
    try:
        fault = ChatTemplate(model.chat_template, bos=model.bos_text, eos=model.eos_text).fault
    except InvalidTemplate as error:
        fault = str(error)
    if fault:
        return Finding("model", Level.PROBLEM, f"{text}: {fault}", INSTEAD)
    return Finding("model", Level.OK, text, numbers={"parameters": model.parameters})


def file_finding(path: Path) -> Finding:
    """Whether the file is that of the catalogue: llama.cpp computes with any bytes of the right shape. Read anew each
    time, because a disk that loses bits tells no new time of change."""
    entry = preset_of(path)
    if entry is None or entry.sha256 is None:
        return Finding("file", Level.OK, f"the catalogue has no checksum of {path.name}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        text = f"{path.name} is not the file of the catalogue: its sha256 is {digest}, not {entry.sha256}"
        return Finding("file", Level.PROBLEM, text, f"delete it, then firsttoken models pull {entry.name}")
    return Finding("file", Level.OK, f"{path.name} has the checksum of {entry.name} in the catalogue")


def draft_finding(draft: LlamaModel, model: LlamaModel) -> Finding:
    if not same_vocabulary(draft.vocabulary(), model.vocabulary()):
        text = f"{draft.name} cannot draft for {model.name}: their vocabularies differ"
        return Finding("draft", Level.PROBLEM, text, "choose one of the same family with --draft, or leave it out")
    return Finding("draft", Level.OK, f"{draft.name}, {draft.quantisation}, {_count(draft.parameters)} parameters")


def memory_finding(config: EngineConfig, model: Proportions, draft: Proportions | None, room: Room) -> Finding:
    """How `serve` would use the memory that is free now."""
    try:
        allowance = allow(config, model, draft, room)
    except CannotServe as error:
        return Finding("memory", Level.PROBLEM, error.reason, error.todo, _numbers(error.need, room))
    text = "; ".join(filter(None, (allowance.text, allowance.where)))
    return Finding("memory", Level.OK, text, numbers=_numbers(allowance.need, room))


def _numbers(need: Footprint, room: Room) -> dict[str, float]:
    numbers: dict[str, float] = {
        "needed_bytes": need.total,
        "kv_cache_bytes": need.kv_cache,
        "weight_bytes": need.weights,
    }
    return numbers if room.host_free is None else {**numbers, "available_bytes": room.host_free}


isolated_self_test = Isolated(selftest.self_test, timeout_s=SELF_TEST_TIMEOUT_S)


def self_test(model: Path, adapters: Sequence[Adapter] = ()) -> Finding:
    """Decode 1, 5 and 64 rows in a process where a crash does no harm."""
    try:
        told = isolated_self_test(model, adapters)
    except RunFailed as failure:
        if "adapter" in str(failure):
            return Finding("self-test", Level.PROBLEM, str(failure), "correct or leave out --lora")
        is_build = failure.crashed or str(failure).startswith(AssertionError.__name__)
        return Finding("self-test", Level.PROBLEM, str(failure), REBUILD if is_build else OTHER_MODEL)
    return Finding("self-test", Level.OK, told)


def speed(config: EngineConfig) -> Finding:
    """Of a single stream; several streams share each step and are faster together."""
    threads = config.threads or default_threads()
    try:
        found = isolated_stream_speed(config.model_path, threads=threads, gpu_layers=config.gpu_layers)
    except RunFailed as failure:
        return Finding("speed", Level.PROBLEM, str(failure), "choose a smaller model or quantisation")
    return speed_finding(found.prefill, found.decode)


def speed_finding(prefill: float, decode: float) -> Finding:
    text = f"prefill {prefill:.0f}, decode {decode:.0f} tokens/s in one stream"
    numbers = {"prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode}
    if decode < READING_TOKENS_PER_S:
        todo = "slower than reading speed: choose a smaller model or quantisation"
        return Finding("speed", Level.WARNING, text, todo, numbers)
    return Finding("speed", Level.OK, text, numbers=numbers)


def attention(config: EngineConfig, calibrations: Calibrations) -> Finding:
    """The cost of steps with each layout of the KV cache, with and without flash attention."""
    if config.is_quantised:
        used = config.attention(gpu=_on_gpu(config))
        return Finding("attention", Level.OK, f"{used}, without which there is no {config.kv_type} KV cache")
    threads = config.threads or default_threads()
    try:
        paces = isolated_paces(config.model_path, threads=threads, gpu_layers=config.gpu_layers)
    except RunFailed as failure:
        return Finding("attention", Level.WARNING, f"not measured: {failure}", NOT_MEASURED)
    measured = config.with_measured(calibrations.put(config, paces))
    return attention_finding(paces, measured.attention(gpu=_on_gpu(config)))


def prefill(config: EngineConfig, calibrations: Calibrations) -> Finding:
    """How many prompt tokens the GPU gets per step."""
    try:
        steps_ms = isolated_prefill_steps_ms(
            config.model_path, attention=config.attention(gpu=True), gpu_layers=config.gpu_layers
        )
    except RunFailed as failure:
        return Finding("prefill", Level.WARNING, f"not measured: {failure}", NOT_MEASURED)
    size = calibrations.put_prefill(config, steps_ms)
    told = ", ".join(f"{each}: {each / ms * 1e3:.0f}" for each, ms in steps_ms.items())
    numbers = {f"{each}_tokens_ms": ms for each, ms in steps_ms.items()}
    return Finding("prefill", Level.OK, f"{size} tokens a step; tokens/s by tokens a step: {told}", numbers=numbers)


def _on_gpu(config: EngineConfig) -> bool:
    return config.gpu_layers != 0 and any(device.is_gpu for device in devices())


def attention_finding(paces: Sequence[Pace], used: Attention) -> Finding:
    """A choice that is only slightly slower is kept, because that much is noise. A kind without a pace crashed."""
    measured, best = [pace.attention for pace in paces], fastest(paces)
    lines = [f"{used}; milliseconds of a step with", *map(str, paces)]
    lines += [f"{each!s:<29} | crashes on this machine" for each in ALL if each not in measured]
    text = "\n".join(lines)
    numbers = {f"{each.attention} {step}_ms": ms for each in paces for step, ms in each.steps_ms.items()}
    if used not in measured:
        return Finding("attention", Level.PROBLEM, text, f"a worker would crash: {best.attention.flags}", numbers)
    slower = paces[measured.index(used)].slower_than(best)
    if slower > SLOWDOWN_MIN:
        todo = f"{best.attention} takes {100 / slower:.0f} % of the time: {best.attention.flags}"
        return Finding("attention", Level.WARNING, text, todo, numbers)
    return Finding("attention", Level.OK, text, numbers=numbers)


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"
