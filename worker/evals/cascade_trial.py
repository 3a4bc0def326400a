"""Reads the trial of a cascade from the trace of an answer, as a case for the curve. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from agents.routing.policy import Cascade, Doubt
from agents.routing.refusal import begins_like
from worker.evals.answer import Answer
from worker.evals.cascade_curve import CascadeTrial
from worker.evals.outcome import Result

PROBE = "firsttoken-probe"
NO_DOUBT = Doubt(mean_logprob=-100, min_logprob=-100, margin=0, refusals=[])


def probe(policy: Cascade) -> str:
    """A table of models.toml with a route that tries the first model and never doubts its answer."""
    told = policy.model_copy(update={"doubt": NO_DOUBT, "hedge": False})
    return "\n\n" + tomli_w.dumps({"routes": {PROBE: told.model_dump()}})


def cascade_trial(
    one: Result, other: Result, answer: Answer, policy: Cascade, prices: tuple[float, float]
) -> CascadeTrial | None:
    """`one` and `answer` are of the probe, `other` of the second model; `prices` are those of a second of each engine.
    None if an answer is missing, or there was no trial."""
    told: Mapping[str, Any] = next((span["attributes"] for span in answer.spans if span["name"] == "route"), {})
    took = one.took.engine_ms, other.took.engine_ms, one.took.first_ms, other.took.first_ms
    engine_ms, other_ms, first_ms, then_ms = (value if value is not None else -1.0 for value in took)
    if one.failed or other.failed or min(engine_ms, other_ms, first_ms, then_ms) < 0 or "trial.tokens" not in told:
        return None
    took_over = bool(told.get("took_over"))
    cost, held_ms = engine_ms / 1e3 * prices[0], float(told["trial.held_ms"])
    judged_tokens = int(told["trial.tokens"])
    return CascadeTrial(
        one.id,
        one.group or "",
        (one.score, other.score),
        (cost, other_ms / 1e3 * prices[1]),
        (max(0.0, first_ms - held_ms), then_ms),
        trial_cost=cost * _until_decided(answer.spans, policy.hold.tokens),
        held_ms=held_ms,
        mean_logprob=float(told.get("trial.mean_logprob", 0.0)) if judged_tokens > 1 else 0.0,
        min_logprob=float(told.get("trial.min_logprob", 0.0)),
        margin=float(told.get("trial.margin", 1.0)),
        surely=took_over or begins_like(answer.text, policy.doubt.refusals),
    )


def _until_decided(spans: Sequence[Mapping[str, Any]], tokens: int) -> float:
    """The share of a step's time that it takes to prefill the prompt and decode the tokens that are held back."""
    read = sum(float(span["duration_ms"] or 0) for span in spans if span["name"] in ("prefill", "prefill_prefix"))
    decodes = [span for span in spans if span["name"] == "decode"]
    wrote = sum(float(span["duration_ms"] or 0) for span in decodes)
    written = sum(int(span["attributes"].get("tokens") or 0) for span in decodes)
    whole = read + wrote
    return (read + wrote * min(1.0, tokens / written)) / whole if whole and written else 1.0
