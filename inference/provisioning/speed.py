"""Measures the speed of steps on this machine.

That may take all memory, and crashes on a bad build, so it is done in processes of their own. The fastest step of each
kind counts, which is what the machine can do without other load. All functions raise InferenceError, and those that
measure in a process of their own RunFailed.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter

from inference.attention import ALL, Attention
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL
from inference.config import default_threads
from inference.llama import LlamaContext, LlamaModel
from inference.provisioning.isolated_process import Isolated, RunFailed

TIMEOUT_S = 300.0  # all budgets, and loading a large file from a slow disk

# Of a stream.
PREFILL_ROWS = 64  # a multiple that suits the kernels; more rows are little faster and much slower to measure
PREFILL_STEPS, DECODE_STEPS = 8, 32  # enough for the choice of threads to settle
STREAM_BUDGET_S = 30.0  # per kind of step: a large model on a small machine gets fewer

# Of the kinds of attention.
STREAMS = (1, 8, 16)
PROMPTS, PROMPT_ROWS = 2, 60  # not a multiple of the kernels' tiles, as real questions are not either
HISTORY_TOKENS = 6 * PROMPT_ROWS  # in every slot: a system prompt and a turn or two
ROUNDS = 8  # enough to try out the number of threads as well
ATTENTION_BUDGET_S = (
    10.0  # for filling the slots, and again for the steps: a large model gets less history and fewer rounds
)
UNIFIED_GAIN = 1.1

# Of the tokens of a prefill step. A GPU idles between two small ones; larger ones make the other streams of a step
# wait, and take memory. Multiples of the kernels' tiles; beyond them, the results of a step take more memory than they
# gain.
SIZES = (128, 256, 512, 1024)
SIZE_ROUNDS = 5
SIZES_BUDGET_S = 20.0  # sizes not reached by then are not judged
ENOUGH = 0.95  # of the best tokens per second: what a larger step gains beyond that is noise

# Of barriers.
TASKS = Path("/proc/self/task")
BARRIERS_CONTEXT = 256
# Another program on the same cores makes threads sleep too, but not in every step.
UNDISTURBED_S = 5.0


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one stream."""

    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Milliseconds of the fastest step, by kind of step."""

    attention: Attention
    steps_ms: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.attention!s:<29}" + "".join(f" | {name} {ms:.1f}" for name, ms in self.steps_ms.items())

    def slower_than(self, other: Pace) -> float:
        """How many times as long its steps take as the other's, as the geometric mean over all kinds of steps."""
        return geometric_mean(ms / other.steps_ms[name] for name, ms in self.steps_ms.items())


@dataclass(frozen=True, slots=True)
class Barriers:
    """Whether the compute threads wait for each other without sleeping. A step has some hundred barriers between its
    operations. Where threads sleep there, a small model takes several times as long. Two things make them sleep: the
    settings of OpenMP, and more of its threads in the process than cores.

    `threads` should compute; `busy` did while steps were computed and `resting` were left afterwards, beside the one
    that ran the steps (0 where the system has no list of threads). `sleeps`: how often they slept in the step in which
    they did so least often."""

    threads: int
    busy: int
    resting: int
    sleeps: int


def fastest(paces: Sequence[Pace]) -> Pace:
    """A unified cache must be clearly faster: what it costs to park conversations is not in these steps."""
    return min(paces, key=lambda pace: pace.slower_than(paces[0]) * (UNIFIED_GAIN if pace.attention.unified else 1))


def best_size(steps_ms: Mapping[int, float]) -> int:
    """The smallest size with about as many tokens per second as the best."""
    speeds = {size: size / ms for size, ms in steps_ms.items()}
    return min(size for size, speed in speeds.items() if speed >= ENOUGH * max(speeds.values()))


def stream_speed(path: Path, *, threads: int, gpu_layers: int) -> Speed:
    """Blocks for seconds, or for a minute with a large model."""
    rows_max, tokens_max = PREFILL_ROWS, PREFILL_ROWS * PREFILL_STEPS + DECODE_STEPS
    with (
        closing(LlamaModel.load(path, gpu_layers=gpu_layers)) as model,
        closing(LlamaContext(model, slots=1, context=tokens_max, rows_max=rows_max, threads=threads)) as context,
    ):

        def step(rows: int) -> None:
            start = context.length(0)
            tokens = [(start + row) % model.vocabulary_size for row in range(rows)]
            context.decode([Chunk(0, start, tokens)])

        prefill = PREFILL_ROWS / _fastest_s(lambda: step(PREFILL_ROWS), range(PREFILL_STEPS))
        return Speed(prefill, 1 / _fastest_s(lambda: step(1), range(DECODE_STEPS)))


def attention_paces(path: Path, kinds: Sequence[Attention], *, threads: int, gpu_layers: int) -> list[Pace]:
    """The kinds take turns, so that other load slows them alike. Blocks for seconds, or for a minute with a large
    model."""
    model = LlamaModel.load(path, gpu_layers=gpu_layers)
    made = {
        attention: LlamaContext(
            model,
            slots=max(STREAMS),
            context=HISTORY_TOKENS + PROMPT_ROWS,
            rows_max=PROMPTS * PROMPT_ROWS,
            threads=threads,
            attention=attention,
        )
        for attention in kinds
    }
    held = _fill(list(made.values()))
    prompts = [Chunk(slot, held, range(PROMPT_ROWS)) for slot in range(PROMPTS)]
    # The largest first: if llama.cpp's compute buffers on a Vulkan device grow in a later step, drivers may crash.
    steps = {f"{PROMPTS} prompts of {PROMPT_ROWS}": prompts}
    steps |= {_streams(n): [Chunk(slot, held, [slot]) for slot in range(n)] for n in reversed(STREAMS)}
    best = {attention: dict.fromkeys(steps, float("inf")) for attention in made}
    began = perf_counter()
    for _ in range(ROUNDS):
        for name, chunks in steps.items():
            for attention, context in made.items():
                best[attention][name] = min(best[attention][name], _step_ms(context, chunks))
        if perf_counter() - began > ATTENTION_BUDGET_S:
            break
    for context in made.values():
        context.close()
    model.close()
    return [Pace(attention, steps_ms) for attention, steps_ms in best.items()]


isolated_attention_paces = Isolated(attention_paces, timeout_s=TIMEOUT_S)


def isolated_paces(path: Path, *, threads: int, gpu_layers: int) -> list[Pace]:
    """If the process crashes, each kind is measured in a process of its own; one that crashes there gets no pace, and
    no worker should use it. Raises RunFailed if none can be measured."""
    try:
        return isolated_attention_paces(path, ALL, threads=threads, gpu_layers=gpu_layers)
    except RunFailed as failure:
        if not failure.crashed:
            raise
        paces: list[Pace] = []
        for kind in ALL:
            with suppress(RunFailed):
                paces += isolated_attention_paces(path, [kind], threads=threads, gpu_layers=gpu_layers)
        if not paces:
            raise
        return paces


def prefill_steps_ms(path: Path, *, attention: Attention, gpu_layers: int) -> dict[int, float]:
    """Milliseconds of a prefill step by its number of tokens. Blocks for seconds."""
    most, threads = max(SIZES), default_threads()
    with (
        closing(LlamaModel.load(path, gpu_layers=gpu_layers)) as model,
        closing(
            LlamaContext(model, slots=1, context=most, rows_max=most, threads=threads, attention=attention)
        ) as context,
    ):

        def step_ms(size: int) -> float:
            return _step_ms(context, [Chunk(0, 0, [token % context.vocabulary_size for token in range(size)])])

        found: dict[int, float] = {}
        began = perf_counter()
        for size in SIZES:
            step_ms(size)  # compiles the kernels of this size
            found[size] = step_ms(size)
            if perf_counter() - began > SIZES_BUDGET_S:
                break
        for _ in range(SIZE_ROUNDS):
            for size in found:
                found[size] = min(found[size], step_ms(size))
            if perf_counter() - began > SIZES_BUDGET_S:
                break
        return found


def barriers() -> Barriers:
    """Of the bundled model. Computes as a worker does, on another thread than the one that loaded the model. Blocks for
    up to UNDISTURBED_S."""
    before, threads = _tasks(), default_threads()
    with ThreadPoolExecutor(1) as engine:
        engine.submit(_tasks).result()
        with closing(LlamaModel.load(CHAT_MODEL)) as model:
            context = LlamaContext(
                model, slots=1, context=BARRIERS_CONTEXT, rows_max=1, threads=threads, threads_min=threads
            )
            with closing(context):
                sleeps = engine.submit(_fewest_sleeps, context).result()
                busy = _tasks() - before - 1
                engine.submit(context.rest).result()
                return Barriers(threads, busy, _tasks() - before - 1, sleeps)


isolated_stream_speed = Isolated(stream_speed, timeout_s=TIMEOUT_S)
isolated_prefill_steps_ms = Isolated(prefill_steps_ms, timeout_s=TIMEOUT_S)
isolated_barriers = Isolated(barriers, timeout_s=TIMEOUT_S)


def _fewest_sleeps(context: LlamaContext) -> int:
    """Of a model whose operations are so short that no thread waits long for another."""
    fewest, began = _sleeps(context), perf_counter()
    while fewest and perf_counter() - began < UNDISTURBED_S:
        fewest = min(fewest, _sleeps(context))
    return fewest


def _sleeps(context: LlamaContext) -> int:
    length = context.length(0)
    if length == BARRIERS_CONTEXT:
        context.truncate(0, length := 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    context.decode([Chunk(0, length, [5])])
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before


def _tasks() -> int:
    return len(list(TASKS.iterdir())) if TASKS.exists() else 0


def _fastest_s(step: Callable[[], None], times: Iterable[int]) -> float:
    """Seconds of the fastest step within the budget."""
    fastest, began = float("inf"), perf_counter()
    for _ in times:
        started = perf_counter()
        step()
        fastest = min(fastest, perf_counter() - started)
        if perf_counter() - began > STREAM_BUDGET_S:
            break
    return fastest


def _fill(contexts: Sequence[LlamaContext]) -> int:
    """Give every slot a copy of the same history, in every context; returns its length in tokens."""
    began, held = perf_counter(), 0
    while held < HISTORY_TOKENS and perf_counter() - began < ATTENTION_BUDGET_S:
        for context in contexts:
            context.decode([Chunk(0, held, range(PROMPT_ROWS))])
        held += PROMPT_ROWS
    for context in contexts:
        state = context.save(0)
        for slot in range(1, context.slots):
            context.restore(slot, state)  # a fork would share the cells, and attention would read them only once
    return held


def _step_ms(context: LlamaContext, chunks: Sequence[Chunk]) -> float:
    started = perf_counter()
    context.decode(chunks)
    took = perf_counter() - started
    for chunk in chunks:
        context.truncate(chunk.slot, chunk.position)
    return took * 1e3


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
