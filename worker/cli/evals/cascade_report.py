"""The report of a fitted cascade: a table, Markdown with a picture, and the policy for models.toml. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

import tomli_w

from agents.routing.policy import Cascade
from agents.routing.refusal import REFUSALS
from worker.cli.evals.cascade_curve import Fit, Point
from worker.cli.evals.report import aligned, in_markdown

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
