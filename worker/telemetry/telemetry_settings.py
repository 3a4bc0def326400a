"""Settings of what is measured of turns, how long it is kept, and who else gets it."""

from __future__ import annotations

from dataclasses import dataclass

from worker.runs.record import OBJECTIVE, USUAL_TARGETS, Targets
from worker.setting import Group, setting, web_address


def _headers(text: str) -> dict[str, str]:
    pairs = [pair.split("=", 1) for pair in text.split(",") if pair.strip()]
    if any(len(pair) != 2 or not pair[0].strip() for pair in pairs):
        raise ValueError("must be name=value, separated by commas")
    return {name.strip(): value.strip() for name, value in pairs}


@dataclass(frozen=True)
class TelemetrySettings(Group, title="Telemetry"):
    targets: str = setting(
        USUAL_TARGETS,
        "latency targets by surface: milliseconds to the first token / milliseconds per token after it",
        check=Targets.parse,
    )
    objective: float = setting(
        OBJECTIVE,
        "objective for the share of answers on time; the burn rates in the metrics refer to it",
        least=0.5,
        most=0.9999,
    )
    trace_days: float = setting(7.0, "days for which traces are kept", least=0.01)
    audit_days: float = setting(365.0, "days for which the audit log is kept", least=1)
    otlp_endpoint: str | None = setting(
        None,
        "URL of an OpenTelemetry collector that receives all traces and metrics, by OTLP over HTTP",
        check=web_address,
        also="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_headers: str | None = setting(
        None,
        "HTTP headers for that collector: name=value, separated by commas",
        secret=True,
        check=_headers,
        also="OTEL_EXPORTER_OTLP_HEADERS",
    )

    @property
    def otlp_header_map(self) -> dict[str, str]:
        return _headers(self.otlp_headers or "")
