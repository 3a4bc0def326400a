"""What a cascade between two models achieves at every threshold: quality against cost and TTFT; and its report. Pure.

Both models answered each case, and the start of the first one's answer was scored as a cascade does. So the result of a
cascade with other thresholds is known without running it again. Thresholds are chosen on one half of the cases and
measured on the other. After Chen et al. 2023, "FrugalGPT" (arXiv 2305.05176), which learns the thresholds of a cascade
under a budget, and Ong et al. 2024, "RouteLLM" (arXiv 2406.18665), whose measures are reported: the performance gap
recovered (PGR), and its average over shares of the strong model (APGR), which is 0.5 for a random router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import product
from statistics import fmean, median
from typing import Any

import numpy as np
import tomli_w

from agents.routing.policy import REFUSALS, Cascade, Doubt, begins_like
from worker.cli.evals.outcome import Interval, Result, difference
from worker.cli.evals.suite import Answer
from worker.cli.evals.table import aligned, in_markdown

NEVER_LOG, NEVER_MARGIN = -100.0, 0.0  # thresholds that no score is below
STEPS_MAX = 12  # thresholds tried per kind: as fine as a few dozen cases can resolve
HALVES_MIN = 8  # cases in a half; with fewer, a threshold would be determined by a single case
SHARES = tuple(share / 20 for share in range(21))


@dataclass(frozen=True, slots=True)
class CascadeTrial:
    """A case as both models answered it. Costs are in the unit of the prices; `trial_cost` is the cost of the first
    model until it is abandoned. `surely`: the second model takes over whatever the thresholds are."""

    id: str
    group: str
    scores: tuple[float, float]
    costs: tuple[float, float]
    first_ms: tuple[float, float]
    trial_cost: float = 0.0
    held_ms: float = 0.0
    mean_logprob: float = 0.0
    min_logprob: float = 0.0
    margin: float = 1.0
    surely: bool = False


@dataclass(frozen=True, slots=True)
class Thresholds:
    mean_logprob: float = NEVER_LOG
    min_logprob: float = NEVER_LOG
    margin: float = NEVER_MARGIN

    @property
    def count(self) -> int:
        """How many of them are in effect."""
        return (self.mean_logprob > NEVER_LOG) + (self.min_logprob > NEVER_LOG) + (self.margin > NEVER_MARGIN)

    def doubt(self, case: CascadeTrial) -> bool:
        return (
            case.surely
            or case.mean_logprob < self.mean_logprob
            or case.min_logprob < self.min_logprob
            or case.margin < self.margin
        )


@dataclass(frozen=True, slots=True)
class Point:
    """Means over cases, of TTFT the median; `taken_over` is the share of cases."""

    quality: float
    cost: float
    first_ms: float
    taken_over: float


@dataclass(frozen=True, slots=True)
class Fit:
    """`frontier` are the thresholds that no others dominate on the half they were chosen on, the cheapest first. All
    points are measured on the other half."""

    thresholds: Thresholds
    fitted: Point
    held_out: Point
    first: Point
    then: Point
    frontier: Sequence[tuple[Thresholds, Point]]
    cases: tuple[int, int]  # of the two halves
    difference: Interval  # of the scores, compared with the second model alone

    @property
    def recovered(self) -> float | None:
        """The share of the gap in quality that the cascade closes; None if there is no gap."""
        return _recovered(self.held_out.quality, self.first.quality, self.then.quality)

    @property
    def cost_share(self) -> float | None:
        """Relative to the cost of the second model alone."""
        return self.held_out.cost / self.then.cost if self.then.cost else None

    @property
    def average_recovered(self) -> float | None:
        """APGR: the average over the shares of cases that are taken over."""
        points = sorted((point for _, point in self.frontier), key=lambda point: (point.taken_over, point.quality))
        ends = [(0.0, self.first.quality), *((p.taken_over, p.quality) for p in points), (1.0, self.then.quality)]
        shares, qualities = zip(*ends, strict=True)
        found = [_recovered(q, self.first.quality, self.then.quality) for q in np.interp(SHARES, shares, qualities)]
        known = [each for each in found if each is not None]
        return fmean(known) if known else None


def fit(cases: Sequence[CascadeTrial], keep: float) -> Fit:
    """The cheapest thresholds that recover this share of the gap in quality between the models, on the first half.
    Raises ValueError if there are too few cases."""
    fitted, held_out = halves(cases)
    if len(held_out) < HALVES_MIN:
        raise ValueError(f"{len(cases)} cases are too few to choose thresholds: at least {2 * HALVES_MIN} are needed")
    tried = [(each, measured(fitted, each)) for each in _grid(fitted)]
    alone = measured_alone(fitted)
    wanted = alone[0].quality + keep * max(0.0, alone[1].quality - alone[0].quality)
    enough = [pair for pair in tried if pair[1].quality >= wanted - 1e-9]
    thresholds, point = min(enough, key=lambda pair: (pair[1].cost, pair[0].count, -pair[1].quality))
    scores = [case.scores[thresholds.doubt(case)] for case in held_out]
    first, then = measured_alone(held_out)
    return Fit(
        thresholds,
        point,
        measured(held_out, thresholds),
        first,
        then,
        [(each, measured(held_out, each)) for each, _ in _frontier(tried)],
        (len(fitted), len(held_out)),
        difference(scores, [case.scores[1] for case in held_out]),
    )


def halves(cases: Sequence[CascadeTrial]) -> tuple[list[CascadeTrial], list[CascadeTrial]]:
    """Alternating within each group, so that both halves have all kinds of cases; deterministic."""
    ordered = sorted(cases, key=lambda case: (case.group, case.id))
    return ordered[::2], ordered[1::2]


def measured(cases: Sequence[CascadeTrial], thresholds: Thresholds) -> Point:
    """The result of a cascade with these thresholds."""
    doubted = [thresholds.doubt(case) for case in cases]
    pairs = list(zip(cases, doubted, strict=True))
    return Point(
        fmean(case.scores[taken] for case, taken in pairs),
        fmean(case.trial_cost + case.costs[1] if taken else case.costs[0] for case, taken in pairs),
        median(case.first_ms[0] + case.held_ms + (case.first_ms[1] if taken else 0.0) for case, taken in pairs),
        fmean(doubted),
    )


def measured_alone(cases: Sequence[CascadeTrial]) -> tuple[Point, Point]:
    """Each model by itself."""
    first, then = (
        Point(
            fmean(case.scores[at] for case in cases),
            fmean(case.costs[at] for case in cases),
            median(case.first_ms[at] for case in cases),
            float(at),
        )
        for at in (0, 1)
    )
    return first, then


def _grid(cases: Sequence[CascadeTrial]) -> list[Thresholds]:
    means = [NEVER_LOG, *_between([case.mean_logprob for case in cases], highest=0.0)]
    least = [NEVER_LOG, *_between([case.min_logprob for case in cases], highest=0.0)]
    margins = [NEVER_MARGIN, *_between([case.margin for case in cases], highest=1.0)]
    return [Thresholds(*each) for each in product(means, least, margins)]


def _between(values: Sequence[float], highest: float) -> list[float]:
    """Thresholds midway between neighbouring scores, so that no case lies on one; the last one is above all of them."""
    known = sorted({value for value in values if value < highest})
    found = [(one + other) / 2 for one, other in zip(known, [*known[1:], highest], strict=True)]
    step = max(1, -(-len(found) // STEPS_MAX))
    return [round(value, 4) for value in found[::-1][::step]]


def _frontier(tried: Sequence[tuple[Thresholds, Point]]) -> list[tuple[Thresholds, Point]]:
    """The points that no other point beats in both quality and cost."""
    found: list[tuple[Thresholds, Point]] = []
    for thresholds, point in sorted(tried, key=lambda pair: (pair[1].cost, -pair[1].quality, pair[0].count)):
        if not found or point.quality > found[-1][1].quality:
            found.append((thresholds, point))
    return found


def _recovered(quality: float, first: float, then: float) -> float | None:
    return (quality - first) / (then - first) if then > first else None


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


WIDTH, HEIGHT, LEFT, TOP = 520, 300, 70, 30
DIGITS = 4  # of a threshold


def table(fit: Fit, route: str, policy: Cascade) -> list[str]:
    return [*aligned(_rows(fit, policy)), "", *summary(fit, route)]


def summary(fit: Fit, route: str) -> list[str]:
    lines = [f"Thresholds were chosen on {fit.cases[0]} cases and measured on {fit.cases[1]} others."]
    if fit.recovered is None:
        lines.append("The second model is no better than the first on these cases: use the first one alone.")
    else:
        low, high = fit.difference.low, fit.difference.high
        share = f" at {fit.cost_share:.0%} of its cost" if fit.cost_share is not None else ""
        average = fit.average_recovered or 0.0
        lines += [
            f"{route} recovers {fit.recovered:.0%} of the gap in quality{share}; its score differs from that of the "
            f"second model by {fit.difference.mean:+.3f} ({low:+.3f} to {high:+.3f}, 95 %).",
            f"Over all thresholds it recovers {average:.0%} on average (APGR); choosing at random recovers 50%.",
        ]
    if fit.cost_share is not None and fit.cost_share >= 1:
        lines.append("The cascade costs no less than the second model alone: it is not worth having on these cases.")
    return lines


def fragment(fit: Fit, route: str, policy: Cascade) -> str:
    """The table of models.toml."""
    thresholds = fit.thresholds
    doubt: dict[str, Any] = {
        "mean_logprob": round(thresholds.mean_logprob, DIGITS),
        "min_logprob": round(thresholds.min_logprob, DIGITS),
        "margin": round(thresholds.margin, DIGITS),
    }
    if tuple(policy.doubt.refusals) != REFUSALS:
        doubt["refusals"] = policy.doubt.refusals
    return tomli_w.dumps({"routes": {route: {**policy.model_dump(exclude={"doubt"}), "doubt": doubt}}})


def as_json(fit: Fit, route: str, policy: Cascade) -> dict[str, Any]:
    return {
        "format": 1,
        "route": route,
        "first": policy.first,
        "then": policy.then,
        "thresholds": asdict(fit.thresholds),
        "cases": {"fitted": fit.cases[0], "held_out": fit.cases[1]},
        "recovered": fit.recovered,
        "average_recovered": fit.average_recovered,
        "cost_share": fit.cost_share,
        "difference": asdict(fit.difference),
        "points": {
            "first": asdict(fit.first),
            "then": asdict(fit.then),
            "fitted": asdict(fit.fitted),
            "held_out": asdict(fit.held_out),
        },
        "frontier": [{"thresholds": asdict(each), "held_out": asdict(point)} for each, point in fit.frontier],
    }


def markdown(fit: Fit, route: str, policy: Cascade, picture: str) -> str:
    """`picture` is the name of an image in the same folder."""
    frontier = [
        ["MEAN", "MIN", "MARGIN", "SCORE", "COST", "FIRST TOKEN", "TAKEN OVER"],
        *([*_shown(each.mean_logprob, each.min_logprob, each.margin), *_cells(point)] for each, point in fit.frontier),
    ]
    parts = [
        f"# {route}: {policy.first}, then {policy.then}",
        " ".join(summary(fit, route)),
        f"![Score against cost]({picture})",
        "## On the cases that were held out\n\n" + in_markdown(_rows(fit, policy)),
        "## The policy\n\n```toml\n" + fragment(fit, route, policy) + "```",
        "## Other thresholds\n\nNone of them was both better and cheaper than another one on the cases that thresholds "
        "were chosen on; measured on the others.\n\n" + in_markdown(frontier),
        "After FrugalGPT (Chen et al. 2023, arXiv 2305.05176) and RouteLLM (Ong et al. 2024, arXiv 2406.18665). The "
        "interval is a paired bootstrap over cases.",
    ]
    return "\n\n".join(parts) + "\n"


def picture(fit: Fit, policy: Cascade) -> str:
    """Score against cost, as SVG: the cascade at all thresholds, both models, and a random router."""
    named = [(policy.first, fit.first), (policy.then, fit.then), ("chosen", fit.held_out)]
    points = [point for _, point in fit.frontier]
    everything = [*(point for _, point in named), *points]
    costs, scores = [point.cost for point in everything], [point.quality for point in everything]
    most, low, high = max(costs) or 1.0, min(scores), max(scores)
    reach = max(high - low, 0.02)

    def place(point: Point) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 110) * point.cost / most
        return round(x, 1), round(TOP + (HEIGHT - TOP - 50) * (high - point.quality) / reach, 1)

    def line(through: Sequence[Point], style: str) -> str:
        return f'<polyline points="{" ".join("{},{}".format(*place(p)) for p in through)}" fill="none" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="#fff"/>',
        f'<path d="M{LEFT} {TOP - 10}V{HEIGHT - 40}H{WIDTH - 20}" fill="none" stroke="#8a94a3"/>',
        f'<text x="{LEFT - 8}" y="{TOP + 4}" text-anchor="end" fill="#4a5361">{high:.2f}</text>'
        f'<text x="{LEFT - 8}" y="{HEIGHT - 46}" text-anchor="end" fill="#4a5361">{high - reach:.2f}</text>'
        f'<text x="{WIDTH - 20}" y="{HEIGHT - 22}" text-anchor="end" fill="#4a5361">cost</text>'
        f'<text x="{LEFT}" y="16" fill="#4a5361">score</text>',
        line([fit.first, fit.then], 'stroke="#8a94a3" stroke-dasharray="4 4"'),
        line(sorted(points, key=lambda point: point.cost), 'stroke="#2f4b7c" stroke-width="2"'),
    ]
    for name, point in named:
        x, y = place(point)
        colour = "#1b7f4b" if point is fit.held_out else "#1d2430"
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>'
            f'<text x="{x + 9}" y="{y + 4}" fill="{colour}">{escape(name, quote=False)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _rows(fit: Fit, policy: Cascade) -> list[list[str]]:
    head = ["ON HELD-OUT CASES", "SCORE", "COST", "FIRST TOKEN", "TAKEN OVER"]
    points = [(policy.first, fit.first), ("cascade", fit.held_out), (policy.then, fit.then)]
    return [head, *([name, *_cells(point)] for name, point in points)]


def _cells(point: Point) -> list[str]:
    return [f"{point.quality:.3f}", f"{point.cost:.4g}", f"{point.first_ms:.0f} ms", f"{point.taken_over:.0%}"]


def _shown(*thresholds: float) -> list[str]:
    return [f"{value:.4g}" for value in thresholds]
