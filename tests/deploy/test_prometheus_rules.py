"""The rules for Prometheus that are shipped ask for metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

from inference.trace import Trace
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import TurnRecord
from worker.telemetry.prometheus import Metrics

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "firsttoken.rules.yml"
METRIC = re.compile(r"(?<!:)\bfirsttoken_\w+(?:\{[^}]*\})?")
RECORDED = re.compile(r"firsttoken:[\w:]+")


def told() -> str:
    metrics, trace = Metrics(dict, Supervisor()), Trace()
    trace.add("queue", trace.start_ns, trace.start_ns + 1, expected_ms=1.0, took_ms=1.0)
    trace.add("prefill", trace.start_ns, trace.start_ns + 1, new_tokens=1, cached_tokens=1)
    trace.add("decode", trace.start_ns, trace.start_ns + 1, tokens=2)
    for within in (True, False):
        facts = (trace, uuid4(), "completed", "chat", "demo")
        metrics.observe(TurnRecord(*facts, ttft_ms=1.0, tpot_ms=1.0, within_target=within))
    metrics.count_request("GET", "/healthz", 200)
    return metrics.render().decode()


def test_every_metric_of_the_rules_is_told_with_the_labels_that_they_choose() -> None:
    lines = told().splitlines()
    found = METRIC.findall(RULES.read_text())
    assert len(found) >= 8
    for metric in found:
        name, _, label = metric.rstrip("}").partition("{")
        assert any(re.match(rf"{name}[ {{]", line) and label in line for line in lines), metric


def test_every_ratio_that_an_alert_compares_is_recorded() -> None:
    text = RULES.read_text()
    recorded = re.findall(r"record: (\S+)", text)
    assert recorded
    assert set(RECORDED.findall(text)) == set(recorded)
