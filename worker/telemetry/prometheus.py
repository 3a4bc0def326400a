"""Counters and histograms for Prometheus. Label values come from small closed sets, whatever clients send.

The parts of the process's memory add up to what it uses, so that whatever grows has a name: `unused` is freed to malloc
but not returned to the system, `rest` is Python, its libraries and everything unaccounted for.

Counts and histograms by label are read at each scrape and cost half a microsecond to add to. Those of prometheus_client
hold a lock for each of up to fifteen buckets; with them, counting a finished turn took a twentieth of its request.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, TypeAlias
from uuid import UUID

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.utils import floatToGoString

from inference.trace import Attribute, Trace
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import OBJECTIVE, SpanNames, TurnRecord

Stats: TypeAlias = Callable[[], Mapping[str, Any]]  # of an engine

UNCOUNTED_MAX = 4096  # traces of a few kilobytes, while nobody stores or reads
TENANTS_MAX = 50  # labels: each is multiplied by surfaces, cache classes and outcomes
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SPAN_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)
# Actual divided by forecast: a forecast within 20 % lies between 0.8 and 1.2.
RATIOS = (0.25, 0.5, 0.8, 1.0, 1.2, 1.5, 2, 4)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.5)


class Metrics:
    """One registry per worker; the names of the first three metrics are those of the GenAI semantic conventions."""

    def __init__(self, engine_stats: Stats, supervisor: Supervisor, objective: float = OBJECTIVE) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for read in (engine_gauges, memory_gauge):
            self._registry.register(Scraped(partial(read, engine_stats)))
        self._registry.register(Scraped(partial(_background_gauges, supervisor)))
        self._uncounted: deque[TurnRecord] = deque()
        self._counting = Lock()
        self._span_names = SpanNames()
        self._tenants: dict[UUID, str] = {}
        self.ttft = self._histogram("gen_ai_server_time_to_first_token_seconds", "Arrival to first token", SECONDS)
        self.ttfa = self._histogram("firsttoken_first_answer_seconds", "Arrival to first token of the answer", SECONDS)
        pace = "Pace after the first token"
        self.tpot = self._histogram("gen_ai_server_time_per_output_token_seconds", pace, TOKEN_SECONDS)
        self.duration = self._histogram("gen_ai_server_request_duration_seconds", "Arrival to end of turn", SECONDS)
        self.spans = self._histogram("firsttoken_span_duration_seconds", "Spans of turns", SPAN_SECONDS, "span")
        by_model = "by the model that answered"
        self.model_ttft = self._histogram(
            "firsttoken_model_first_token_seconds", f"Arrival to first token, {by_model}", SECONDS, "model"
        )
        self.model_tpot = self._histogram(
            "firsttoken_model_token_seconds", f"{pace}, {by_model}", TOKEN_SECONDS, "model"
        )
        self.forecast = self._histogram(
            "firsttoken_forecast_ratio",
            "Actual time to first token relative to the prediction, by whether the request waited for a slot",
            RATIOS,
            *("surface", "class", "queued"),
        )
        self.turns = self._counter("firsttoken_turns", "Finished turns", "surface", "status")
        self.judged = self._counter(
            "firsttoken_turns_judged",
            "Finished turns of surfaces with a target, by whether they met it",
            *("surface", "within_target"),
        )
        self.outcomes = self._counter(
            "firsttoken_turn_outcomes",
            "All requested turns, by outcome",
            *("surface", "tenant", "model", "cache", "outcome"),
        )
        self.burn_rate = BurnRate(objective)
        self._registry.register(Scraped(partial(_burn_rates, self.burn_rate)))
        self.tokens = self._counter("firsttoken_tokens", "Tokens of turns", "kind")
        self.cost = self._counter(
            "firsttoken_cost", "What answers cost, in the units of the prices", "surface", "tenant", "model"
        )
        self.taken = self._counter(
            "firsttoken_answer_seconds",
            "Seconds that answers took: of the engine by rows, of it for speculation and cascades, and of tools",
            *("surface", "kind"),
        )
        self.citations = self._counter(
            "firsttoken_citations", "Citations in answers, by whether they refer to a passage", "kind"
        )
        self.requests = self._counter("firsttoken_http_requests", "HTTP requests", "method", "route", "status")
        self.dropped = self._counter("firsttoken_traces_dropped", "Traces that were not stored")
        self.turns_active = Gauge("firsttoken_turns_active", "Turns in progress", registry=self._registry)
        self.tasks = Gauge("firsttoken_event_loop_tasks", "Tasks of the event loop", registry=self._registry)

    def watch_starts(self, starts: Callable[[], Mapping[str, Trace]]) -> None:
        """The start times of the worker and its models, read at each scrape."""
        self._registry.register(Scraped(partial(_starts, starts)))

    def watch_models(self, stats: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """The statistics of each engine by the name of its model, read at each scrape."""
        self._registry.register(Scraped(partial(_each_model, stats)))

    def observe(self, record: TurnRecord) -> None:
        """A turn has finished: `catch_up` counts it, before anybody reads metrics."""
        self._uncounted.append(record)
        if len(self._uncounted) > UNCOUNTED_MAX:
            self.catch_up(1)

    def catch_up(self, turns: int = UNCOUNTED_MAX + 1) -> None:
        """Count as many finished turns, at most. They take up to a tenth of a millisecond each: call it in a thread."""
        for _ in range(min(len(self._uncounted), turns)):
            with self._counting:  # of one turn at a time, since the event loop may wait for it
                if self._uncounted:
                    self._count(self._uncounted.popleft())

    def _count(self, record: TurnRecord) -> None:
        trace, surface, model = record.trace, record.surface, record.model
        self.turns.add(surface, record.status)
        if record.within_target is not None:
            self.judged.add(surface, "yes" if record.within_target else "no")
            self.burn_rate.add(surface, record.within_target, monotonic())
        tenant = self._tenant_label(record.tenant_id)
        self.outcomes.add(surface, tenant, model, record.cache or "none", record.outcome)
        self.duration.add(trace.duration_ms / 1e3, surface)
        if record.ttft_ms is not None:
            self.ttft.add(record.ttft_ms / 1e3, surface)
            self.model_ttft.add(record.ttft_ms / 1e3, model)
        if record.ttfa_ms is not None:
            self.ttfa.add(record.ttfa_ms / 1e3, surface)
        if record.tpot_ms is not None:
            self.tpot.add(record.tpot_ms / 1e3, surface)
            self.model_tpot.add(record.tpot_ms / 1e3, model)
        self._count_taken(record, tenant)
        for kind, attribute in (("known", "firsttoken.citations"), ("unknown", "firsttoken.citations_unknown")):
            cited = trace.attributes.get(attribute)
            if isinstance(cited, int) and cited:
                self.citations.add(kind, amount=cited)
        for span in trace.spans:
            self.spans.add(span.duration_ms / 1e3, self._span_names.known(span.name))
            if span.name in ("prefill", "decode"):
                self._count_tokens(span.attributes)
            elif span.name == "queue":
                self._judge_forecast(surface, span.attributes)

    def _count_taken(self, record: TurnRecord, tenant: str) -> None:
        taken, surface = record.taken, record.surface
        if taken.cost:
            self.cost.add(surface, tenant, record.model, amount=taken.cost)
        for kind, ms in (
            ("engine", taken.engine_ms),
            ("speculation", taken.speculation_ms),
            ("cascade", taken.cascade_ms),
            ("tools", taken.tool_ms),
        ):
            if ms:
                self.taken.add(surface, kind, amount=ms / 1e3)

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count an HTTP response. `route` is the pattern, not the path."""
        self.requests.add(method if route != "none" else "any", route, str(status))

    def _count_tokens(self, attributes: Mapping[str, Attribute]) -> None:
        for attribute, kind in (("new_tokens", "prefilled"), ("cached_tokens", "cached"), ("tokens", "generated")):
            count = attributes.get(attribute)
            if isinstance(count, int) and count:
                self.tokens.add(kind, amount=count)

    def _judge_forecast(self, surface: str, attributes: Mapping[str, Attribute]) -> None:
        expected_ms, took_ms = attributes.get("expected_ms"), attributes.get("took_ms")
        if isinstance(expected_ms, float) and isinstance(took_ms, float) and expected_ms > 0:
            queued = "yes" if attributes.get("expected_wait_ms") else "no"
            self.forecast.add(took_ms / expected_ms, surface, str(attributes.get("class")), queued)

    def collect(self) -> Iterable[Metric]:
        """The families that `render` formats. Takes milliseconds too."""
        self.catch_up()
        return self._registry.collect()

    def render(self) -> bytes:
        """The text format of Prometheus. Takes milliseconds: call it in a thread."""
        self.catch_up()
        return generate_latest(self._registry)

    def _tenant_label(self, tenant_id: UUID) -> str:
        if tenant_id not in self._tenants and len(self._tenants) >= TENANTS_MAX:
            return "other"
        return self._tenants.setdefault(tenant_id, str(tenant_id))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels or ("surface",), buckets, self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counts:
        return Counts(name, text, labels, self._registry)


# Engine gauges that autoscalers read, under names of their own.
NAMED = {
    "predicted_ttft_s": ("firsttoken_predicted_ttft_seconds", "Predicted TTFT of a request that arrived now"),
    "waiting_tokens": ("firsttoken_waiting_prompt_tokens", "Tokens of waiting prompts"),
}


class Scraped:
    """A collector that reads its source during a scrape, so that nothing is counted between scrapes."""

    def __init__(self, collect: Callable[[], list[Metric]]) -> None:
        self.collect = collect


def family(name: str, text: str, samples: Iterable[tuple[Sequence[str], float]], *labels: str) -> Metric:
    """One that ends in `_total` counts, any other is a gauge. A sample is the values of the labels, and its own."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    made = kind(name, text, labels=labels)
    for values, value in samples:
        made.add_metric(values, float(value))
    return made


def engine_gauges(stats: Stats) -> list[Metric]:
    """A mapping yields one sample for each position in a draft."""
    families = []
    for name, value in stats().items():
        full_name, text = NAMED.get(name, (f"firsttoken_engine_{name}", "Of the engine"))
        if isinstance(value, Mapping):
            families.append(family(full_name, text, (([place], each) for place, each in value.items()), "position"))
        elif isinstance(value, int | float):
            families.append(family(full_name, text, [((), value)]))
    return families


def _each_model(stats: Callable[[], Mapping[str, Mapping[str, Any]]]) -> list[Metric]:
    """With several models, one series per model beside the sums. A model that is not loaded reports only that."""
    by_name: defaultdict[str, list[tuple[Sequence[str], float]]] = defaultdict(list)
    for model, told in stats().items():
        for name, value in told.items():
            if isinstance(value, int | float):
                by_name[f"firsttoken_model_{name}"].append(([model], value))
    return [family(name, "Engine of a model", samples, "model") for name, samples in by_name.items()]


def _burn_rates(burn_rate: BurnRate) -> list[Metric]:
    text = "Late turns relative to those that the objective allows, by window"
    rates = ((each, round(rate, 3)) for *each, rate in burn_rate.rates(monotonic()))
    return [family("firsttoken_goodput_burn_rate", text, rates, "surface", "window")]


def _starts(starts: Callable[[], Mapping[str, Trace]]) -> list[Metric]:
    """Duration of the newest start of the worker and of each model."""
    lasted_ms = (
        ((part, phase), ms / 1e3)
        for part, trace in starts().items()
        for phase, ms in [*((span.name, span.duration_ms) for span in trace.spans), ("all", trace.duration_ms)]
    )
    return [family("firsttoken_start_seconds", "The latest start, by phase", lasted_ms, "part", "phase")]


def _background_gauges(supervisor: Supervisor) -> list[Metric]:
    vitals = list(supervisor.vitals.items())
    up = (([part], part not in supervisor.down) for part, _ in vitals)
    failed = (([part], sum(each.failures_total for each in of_part)) for part, of_part in vitals)
    return [
        family("firsttoken_background_up", "Whether a background task is up", up, "part"),
        family("firsttoken_background_failures_total", "Failures of the task", failed, "part"),
    ]


STATUS = Path("/proc/self/status")  # on Linux; elsewhere the ledger is empty
KNOWN = {  # part -> engine's gauge
    "kv_cache": "kv_cache_bytes",
    "working": "working_bytes",
    "parked": "parked_bytes",
    "checkpoints": "checkpoint_bytes",  # of recurrent states, with the logits there
    "prompt_ends": "prompt_end_bytes",  # logits of slots, from which the same prompt is answered without a step
    "prompt_index": "prompt_index_bytes",  # of parked prompts, and of those seen before
    "token_cache": "token_cache_bytes",  # token ids of prompt fragments and of generated turns
    "answer_cache": "answer_cache_bytes",  # exact-match answers
    "query_cache": "query_cache_bytes",  # embedded queries
}


def parts(status: str, stats: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by part, from the text of /proc/*/status and the engine's gauges. Memory that the engine reserved but has
    not touched is not resident: its parts are capped by what is left, in their order. Pure."""
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    resident = {name: int(lines[key].split()[0]) * 1024 for name, key in _RESIDENT.items()}
    found, left = {"mapped_files": resident["file"], "shared": resident["shared"]}, resident["anonymous"]
    for part, gauge in {**KNOWN, "unused": "unused_bytes"}.items():
        found[part] = min(int(stats.get(gauge) or 0), left)
        left -= found[part]
    return {**found, "rest": left}


def unused_bytes() -> int:
    """Free memory in malloc's heaps: the holes between allocations. 0 without glibc, or if it is too old to report it.
    Takes about 0.1 ms."""
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    tell.restype = _Mallinfo
    return int(tell().fordblks)


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`; free bytes are `fordblks`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


_RESIDENT = {"anonymous": "RssAnon", "file": "RssFile", "shared": "RssShmem"}


def memory_gauge(stats: Stats) -> list[Metric]:
    if not STATUS.exists():
        return []
    sizes = parts(STATUS.read_text(), {**stats(), "unused_bytes": unused_bytes()})
    samples = (([part], size) for part, size in sizes.items())
    return [family("firsttoken_memory_bytes", "Resident memory of the process", samples, "part")]


class Counts:
    """A counter with a series for each combination of the values of its labels; without labels, one from the start."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        self._series[labels] = self._series.get(labels, 0.0) + amount

    def collect(self) -> list[Metric]:
        return [family(f"{self._name}_total", self._text, list(self._series.items()), *self._labels)]


class Histogram:
    """A histogram for each combination of the values of its labels. `bounds` ascend; a value belongs to the first one
    that is not less."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], list[float]] = {}  # a count for each bound, one for what is above, the sum
        registry.register(self)

    def add(self, value: float, *labels: str) -> None:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def collect(self) -> list[HistogramMetricFamily]:
        made = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, (*counts, total) in list(self._series.items()):
            made.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), total)
        return [made]


# The burn rate is how fast the error budget of an objective is spent, over several windows at once. A rate of 1 spends
# the budget exactly; with an objective of 95 %, one turn in twenty may be late. The windows and the rates at which to
# page somebody are those of "The Site Reliability Workbook" (Beyer et al. 2018, chapter 5): a long window shows that
# the problem matters, a short one that it is still happening.
SLICE_S = 60.0  # counts are aggregated per minute: 360 slices for a surface
WINDOWS_S: Mapping[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0}
SURFACES_MAX = 64  # a configuration has fewer


class BurnRate:
    """Late and total turns by surface. `now_s` is monotonic."""

    def __init__(self, objective: float) -> None:
        """`objective`: the share of turns that must meet their targets, below 1."""
        self._allowed = 1.0 - objective
        self._slices: dict[str, deque[list[float]]] = {}  # [begin, turns, late turns], oldest first

    def add(self, surface: str, in_time: bool, now_s: float) -> None:
        if surface not in self._slices and len(self._slices) >= SURFACES_MAX:
            return
        slices = self._slices.setdefault(surface, deque())
        if not slices or now_s - slices[-1][0] >= SLICE_S:
            slices.append([now_s, 0, 0])
        slices[-1][1] += 1
        slices[-1][2] += not in_time
        while now_s - slices[0][0] > max(WINDOWS_S.values()):
            slices.popleft()

    def rates(self, now_s: float) -> Iterator[tuple[str, str, float]]:
        """(surface, window, rate); 0 without turns."""
        for surface, slices in list(self._slices.items()):
            for window, length_s in WINDOWS_S.items():
                counted = [each for each in list(slices) if now_s - each[0] <= length_s]
                turns, late = sum(each[1] for each in counted), sum(each[2] for each in counted)
                yield surface, window, late / turns / self._allowed if turns else 0.0
