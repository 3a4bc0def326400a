"""What an engine tells Prometheus, and the pickers of endpoints that know vLLM's names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from inference.model import ChatModel
from worker.memory_ledger import MemoryLedger
from worker.prometheus import ModelGauges


class EngineGauges:
    """Asked at the moment of a scrape."""

    def __init__(self, model: ChatModel) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in (ModelGauges(model.stats), MemoryLedger(model.stats), _Customary(model.stats)):
            self._registry.register(collector)

    async def answer(self) -> web.Response:
        text = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Customary:
    """The names of vLLM, which llm-d, KEDA and the Gateway API's endpoint pickers read."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> list[Metric]:
        stats = self._stats()
        used = stats["running"] / stats["parallel"]
        return [
            GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait", value=float(stats["waiting"])),
            GaugeMetricFamily("vllm:num_requests_running", "Requests in the batch", value=float(stats["running"])),
            GaugeMetricFamily("vllm:kv_cache_usage_perc", "Places of running sequences in use; 1 is all", value=used),
        ]
