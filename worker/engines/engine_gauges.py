"""The Prometheus metrics of an engine, including those that endpoint pickers know by vLLM's names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from inference.model import ChatModel
from worker.memory_ledger import MemoryLedger
from worker.prometheus import ModelGauges


class EngineGauges:
    """Computed during a scrape."""

    def __init__(self, model: ChatModel) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in (ModelGauges(model.stats), MemoryLedger(model.stats), _Customary(model.stats)):
            self._registry.register(collector)

    async def answer(self) -> web.Response:
        text = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Customary:
    """The names of vLLM, which llm-d, KEDA and the Gateway API's endpoint pickers read, with its label."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> list[Metric]:
        stats = self._stats()
        used = min(1.0, stats["running"] / stats["parallel"])  # a tenant below its share may run beyond them
        read, cached = stats["prompt_tokens_total"], stats["cached_tokens_total"]
        gauges = (
            ("num_requests_waiting", "Waiting requests", stats["waiting"]),
            ("num_requests_running", "Running requests", stats["running"]),
            ("kv_cache_usage_perc", "Share of the places for running requests in use, 0 to 1", used),
            ("gpu_cache_usage_perc", "The same, under its older name", used),
        )
        counters = (
            ("prompt_tokens", "Prompt tokens", read),
            ("generation_tokens", "Generated tokens", stats["generated_tokens_total"]),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", read),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", cached),
        )
        return [
            *(_family(GaugeMetricFamily, stats["model"], *each) for each in gauges),
            *(_family(CounterMetricFamily, stats["model"], *each) for each in counters),
        ]


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], model: str, name: str, text: str, value: float
) -> Metric:
    family = kind(f"vllm:{name}", text, labels=["model_name"])
    family.add_metric([model], float(value))
    return family
