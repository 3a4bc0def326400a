"""Converts turns to OpenTelemetry spans, and those to OTLP/JSON; names metrics and labels as OpenTelemetry does. Pure.

Names are those of the semantic conventions for generative AI (github.com/open-telemetry/semantic-conventions-genai, all
"development"); what they do not cover (queue, prefill, cache, drafts) has the prefix `firsttoken.`, or `process.`, and
the unit suffix of a Prometheus name becomes the unit. Texts of users and models are never included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Value: TypeAlias = str | bool | int | float

PROVIDER = "firsttoken"
TRACE_DIGITS = 32
SPAN_DIGITS = 16
OWN = "firsttoken."
APART = ("span_id", "parent_id", "firsttoken:comment")  # exported elsewhere; a collector gets no user comments
KINDS = {"internal": 1, "server": 2}  # the numbers of OTLP
ERROR = 2
FAILED = ("failed", "refused")
# The parts of a turn that have a name of their own in the conventions.
OPERATIONS = {"retrieve": "retrieval", "embed": "embeddings"}
ROOTS = {"embeddings": "embeddings", "completions": "text_completion"}  # other surfaces are `chat`

CONVENTIONS = {
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
}
UNITS = {"_seconds": "s", "_bytes": "By"}


@dataclass(frozen=True, slots=True)
class OtelSpan:
    """Ids are lower-case hex digits; times are Unix nanoseconds. `error` is the type of the failure."""

    trace_id: str
    id: str
    parent_id: str | None
    name: str
    kind: Literal["internal", "server"]
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None


def spans_of(turn: Mapping[str, Any]) -> list[OtelSpan]:
    """`turn` is a trace in the format of /ops/api/traces/{id}. The first span is the whole turn."""
    trace_id = turn["id"][:TRACE_DIGITS]
    noted = turn["attributes"]
    root_id = str(noted.get("span_id") or _span_id(turn["id"], -1))
    start_ns = round(turn["started_at"] * 1e9)
    name = f"{_operation(turn)} {turn['agent'] or turn['model']}".strip()
    ids = [_span_id(turn["id"], index) for index in range(len(turn["spans"]))]
    root = OtelSpan(
        *(trace_id, root_id, noted.get("parent_id"), name, "server"),
        *(start_ns, start_ns + _ns(turn["duration_ms"])),
        dict(_root_attributes(turn)),
        turn["status"] if turn["status"] in FAILED else None,
    )
    return [root, *(_part(root, ids, index, span) for index, span in enumerate(turn["spans"]))]


def _part(root: OtelSpan, ids: list[str], index: int, span: Mapping[str, Any]) -> OtelSpan:
    name, parent = span["name"], span["parent"]
    begun = root.start_ns + _ns(span["start_ms"])
    took = span["duration_ms"]
    noted = span["attributes"] or {}
    error = noted.get("error.type") or ("error" if noted.get("failed") is True else None)
    tool = name.removeprefix("tool:") if name.startswith("tool:") else None
    operation = "execute_tool" if tool else OPERATIONS.get(name)
    shown = f"execute_tool {tool}" if tool else operation or name
    named = {"gen_ai.operation.name": operation, "gen_ai.tool.name": tool, "firsttoken.lane": span["lane"]}
    return OtelSpan(
        *(root.trace_id, ids[index], root.id if parent is None else ids[parent], shown, "internal"),
        *(begun, root.end_ns if took is None else begun + _ns(took)),
        dict(_known({**named, **_own(noted)})),
        error,
    )


def _operation(turn: Mapping[str, Any]) -> str:
    return "invoke_agent" if turn["agent"] else operation_of(turn["surface"])


def operation_of(surface: str) -> str:
    """The operation name of a span in the conventions."""
    return ROOTS.get(surface, "chat")


def _root_attributes(turn: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    read, cached, written = _tokens(turn["spans"])
    ttft = turn["ttft_ms"]
    return _known(
        {
            "gen_ai.operation.name": _operation(turn),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": turn["agent"] or None,
            "gen_ai.request.model": turn["model"],
            "gen_ai.response.model": turn["model"],
            "gen_ai.response.id": turn["response_id"],
            "gen_ai.conversation.id": turn["conversation_id"],
            "gen_ai.usage.input_tokens": read,
            "gen_ai.usage.cache_read.input_tokens": cached,
            "gen_ai.usage.output_tokens": written,
            "gen_ai.response.time_to_first_chunk": None if ttft is None else ttft / 1e3,
            "firsttoken.surface": turn["surface"],
            "firsttoken.status": turn["status"],
            "firsttoken.within_target": turn["within_target"],
            "firsttoken.time_per_output_token_ms": turn["tpot_ms"],
            **_own({name: value for name, value in turn["attributes"].items() if name not in APART}),
        }
    )


def _tokens(spans: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None, int | None]:
    """Input, cached and output tokens, over all steps; None if no model was called."""
    counted: dict[str, int] = {}
    for span in spans:
        for name in {"prefill": ("new_tokens", "cached_tokens"), "decode": ("tokens",)}.get(span["name"], ()):
            counted[name] = counted.get(name, 0) + int(span["attributes"].get(name) or 0)
    cached = counted.get("cached_tokens")
    read = None if cached is None else counted.get("new_tokens", 0) + cached
    return read, cached, counted.get("tokens")


def _own(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """`error.type` and names that already have our prefix, in either spelling, stay as they are."""
    return {
        name if name == "error.type" else OWN + name.removeprefix("firsttoken:").removeprefix(OWN): value
        for name, value in attributes.items()
    }


def _known(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    return ((name, value) for name, value in attributes.items() if isinstance(value, Value))


def _span_id(turn_id: str, index: int) -> str:
    """Deterministic: a turn that is exported twice has the same spans."""
    return hashlib.sha256(f"{turn_id}/{index}".encode()).hexdigest()[:SPAN_DIGITS]


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def otlp_json(spans: Iterable[OtelSpan], version: str) -> dict[str, Any]:
    """The JSON body of a collector's POST /v1/traces."""
    resource = {"service.name": "firsttoken", "service.version": version}
    scope = {"name": "firsttoken", "version": version}
    scoped = {"scope": scope, "spans": [_span_json(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _pairs(resource)}, "scopeSpans": [scoped]}]}


def _span_json(span: OtelSpan) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _pairs(span.attributes),
        "status": {"code": ERROR, "message": span.error} if span.error else {},
    }


def _pairs(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def metric_name(name: str) -> tuple[str, str]:
    """The name of a family of Prometheus in the conventions, without its unit, and that; "1" is OpenTelemetry's unit
    for none."""
    short, unit = next(
        ((name.removesuffix(end), unit) for end, unit in UNITS.items() if name.endswith(end)), (name, "1")
    )
    return CONVENTIONS.get(name) or _dotted(short), unit


def _dotted(name: str) -> str:
    for prefix in ("firsttoken_engine_", "firsttoken_", "process_"):
        if name.startswith(prefix):
            return prefix.replace("_", ".") + name.removeprefix(prefix)
    return OWN + name


def metric_attributes(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Of a sample of this family."""
    own = {OWN + label: value for label, value in labels.items()}
    if name not in CONVENTIONS:
        return own
    return {"gen_ai.operation.name": operation_of(labels["surface"]), "gen_ai.provider.name": PROVIDER, **own}
