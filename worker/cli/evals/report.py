"""The outcome of a suite as a table, as Markdown with a picture, and as JSON, which is read again as the baseline of a
later run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from html import escape
from pathlib import Path
from typing import Any

import orjson

from worker.cli.evals.eval_runner import fingerprint
from worker.cli.evals.outcome import MEASURES, UNITS, Cost, Outcome, Result, Row
from worker.cli.evals.suite import Case, Usage
from worker.cli.evals.table import aligned, in_markdown, plain
from worker.errors import StartError

CHANGED_SHOWN_MAX = 20


def table(outcome: Outcome) -> list[str]:
    rows = aligned(_scores(outcome))
    costs = aligned(_costs(outcome)) if outcome.costs else []
    return [*rows, "", *costs, *([""] if costs else []), *outcome.notes, verdict(outcome)]


def markdown(outcome: Outcome, picture: str = "") -> str:
    """`picture` is the file name of an image in the same folder, if there is one."""
    one, other = outcome.names
    parts = [f"# {one}" + (f" against {other}" if other else ""), verdict(outcome)]
    if picture:
        parts.append(f"![Differences of the scores with their intervals]({picture})")
    parts.append("## Scores\n\n" + in_markdown(_scores(outcome)))
    if outcome.costs:
        parts.append("## Time and cost\n\n" + in_markdown(_costs(outcome)))
    if outcome.changed:
        changed = "\n".join(_changed(outcome))
        parts.append(f"## Cases with another outcome\n\n{changed}")
    parts.append(
        "Intervals hold with 95 % confidence: a paired bootstrap over cases (Efron and Tibshirani 1993, Koehn 2004). "
        f"Scores go from 0 to 1; the margin is {outcome.margin:g}."
    )
    return "\n\n".join([*parts, *outcome.notes]) + "\n"


def verdict(outcome: Outcome) -> str:
    """One sentence."""
    row = outcome.overall
    if row.difference is None:
        return f"{row.cases} cases, mean score {row.score:.3f}."
    low, high = row.difference.low, row.difference.high
    gap = f"{row.difference.mean:+.3f} ({low:+.3f} to {high:+.3f}) in {row.cases} cases"
    if outcome.is_slower:
        return f"Worse: the first token comes more than {outcome.slower:.0%} later. Score: {gap}."
    match outcome.verdict:
        case "not worse":
            if outcome.one and not outcome.changed:
                return f"Not worse: each of {row.cases} cases scored the same on both sides."
            return f"Not worse: {gap}; a loss of more than {outcome.margin:g} is ruled out."
        case "worse":
            return f"Worse: {gap}; the margin is {outcome.margin:g}."
    return (
        f"Unsure: {gap}; a loss of more than {outcome.margin:g} is not ruled out. Ask more cases, or state a wider "
        "--margin."
    )


def picture(outcome: Outcome) -> str:
    """The differences of all scores with their intervals and the margin, as SVG."""
    rows = [row for row in (outcome.overall, *outcome.groups, *outcome.graders) if row.difference is not None]
    ends = [abs(end) for row in rows if row.difference for end in (row.difference.low, row.difference.high)]
    reach = max([*ends, 2 * outcome.margin, 0.05]) * 1.1
    left, width, line, top = 220, 420, 26, 34
    height = top + line * len(rows) + 40

    def x(value: float) -> float:
        return round(left + width * (value + reach) / (2 * reach), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 130} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="#fff"/><rect x="{x(-outcome.margin)}" y="{top - 8}" '
        f'width="{x(outcome.margin) - x(-outcome.margin):.1f}" height="{line * len(rows)}" fill="#eef2f7"/>',
        f'<line x1="{x(0)}" y1="{top - 8}" x2="{x(0)}" y2="{height - 40}" stroke="#8a94a3"/>',
        f'<text x="{left}" y="16" fill="#4a5361">worse</text>'
        f'<text x="{left + width}" y="16" text-anchor="end" fill="#4a5361">better</text>',
    ]
    for number, row in enumerate(rows):
        assert row.difference is not None
        y, between = top + line * number + 6, row.difference
        colour = "#b3261e" if between.high < 0 else "#1b7f4b" if between.low > 0 else "#2f4b7c"
        parts.append(
            f'<text x="{left - 12}" y="{y + 4}" text-anchor="end" fill="#1d2430">{escape(row.name, quote=False)}</text>'
            f'<line x1="{x(between.low)}" y1="{y}" x2="{x(between.high)}" y2="{y}" stroke="{colour}" '
            f'stroke-width="2"/><circle cx="{x(between.mean)}" cy="{y}" r="4" fill="{colour}"/>'
            f'<text x="{left + width + 12}" y="{y + 4}" fill="#1d2430">{between.mean:+.3f} (n={row.cases})</text>'
        )
    parts += [
        f'<text x="{x(at)}" y="{height - 20}" text-anchor="middle" fill="#4a5361">{at:+g}</text>'
        for at in (-outcome.margin, 0.0, outcome.margin)
    ]
    return "\n".join([*parts, "</svg>\n"])


def _scores(outcome: Outcome) -> list[list[str]]:
    two = outcome.other is not None
    head = ["SCORE", "CASES", "MODEL", *(["AGAINST", "DIFFERENCE (95 %)"] if two else [])]
    rows = [outcome.overall, *outcome.groups, *outcome.graders]
    return [head, *(_score(row) for row in rows)]


def _score(row: Row) -> list[str]:
    cells = [row.name, str(row.cases), f"{row.score:.3f}"]
    if row.score_against is None or row.difference is None:
        return cells
    between = row.difference
    return [*cells, f"{row.score_against:.3f}", f"{between.mean:+.3f} ({between.low:+.3f} to {between.high:+.3f})"]


def _costs(outcome: Outcome) -> list[list[str]]:
    two = outcome.other is not None
    head = ["MEDIAN OF", "MODEL", *(["AGAINST", "TIMES AS MUCH (95 %)"] if two else [])]
    return [head, *(_cost(cost, two) for cost in outcome.costs)]


def _cost(cost: Cost, two: bool) -> list[str]:
    unit = UNITS.get(cost.name, "")
    cells = [MEASURES[cost.name], _amount(cost.median, unit)]
    if not two:
        return cells
    between = cost.times
    ratio = f"{between.mean:.2f} ({between.low:.2f} to {between.high:.2f})" if between else "not of one run"
    if cost.median_against is None:
        return [*cells, "-", "-"]
    return [*cells, _amount(cost.median_against, unit), ratio]


def _amount(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".strip() if value < 1000 else f"{value:.0f} {unit}".strip()


def _changed(outcome: Outcome) -> Iterable[str]:
    shown = outcome.changed[:CHANGED_SHOWN_MAX]
    for one, other in shown:
        yield f"- **{plain(one.id)}**: {other.score:.2f} before, {one.score:.2f} now"
        yield f"  - before: {_said(other)}"
        yield f"  - now: {_said(one)}"
    if len(outcome.changed) > len(shown):
        yield f"- and {len(outcome.changed) - len(shown)} more: see the JSON"


def _said(result: Result) -> str:
    return plain("; ".join(f"{name} {value}" for name, value in result.answer.items()))


FORMAT = 1
BYTES_MAX = 256 * 2**20
MISSING_SHOWN_MAX = 3


def as_json(outcome: Outcome) -> dict[str, Any]:
    """With dataclasses in it."""
    other = outcome.other or ()
    cases = [
        _result(one) | ({"against": _result(other[number])} if other else {}) for number, one in enumerate(outcome.one)
    ]
    return {
        "format": FORMAT,
        "model": outcome.names[0],
        "against": outcome.names[1],
        "margin": outcome.margin,
        "slower": outcome.slower,
        "verdict": outcome.verdict if outcome.other is not None else None,
        "score": outcome.overall,
        "groups": outcome.groups,
        "graders": outcome.graders,
        "costs": outcome.costs,
        "notes": list(outcome.notes),
        "cases": cases,
    }


def read_recorded(path: Path, cases: Sequence[Case]) -> tuple[str, list[Result]]:
    """The name of the side `model` in an earlier run, and its results of these cases. Raises StartError."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise StartError(f"{path} is larger than {BYTES_MAX >> 20} MiB")
        recorded = orjson.loads(path.read_bytes())
        if recorded["format"] != FORMAT:
            raise StartError(f"{path}: format: it was written by another version: run the suite again with --json")
        known = {each["id"]: each for each in recorded["cases"]}
        name = str(recorded["model"])
    except FileNotFoundError:
        raise StartError(f"there is no file {path}: a run of the suite with --json writes one") from None
    except (ValueError, TypeError, KeyError) as error:
        raise StartError(f"{path} is not a run of a suite ({type(error).__name__}: {error})") from None
    marks = {case.id or "": fingerprint(case) for case in cases}
    stale = [id for id, mark in marks.items() if known.get(id, {}).get("fingerprint") != mark]
    if stale:
        shown = ", ".join(stale[:MISSING_SHOWN_MAX]) + (", ..." if len(stale) > MISSING_SHOWN_MAX else "")
        raise StartError(f"{path}: {len(stale)} cases are new or have changed since ({shown}): record it again")
    try:
        return name, [_read(known[id]) for id in marks]
    except (TypeError, KeyError, AttributeError) as error:
        raise StartError(f"{path} is not a run of a suite ({type(error).__name__}: {error})") from None


def _result(result: Result) -> dict[str, Any]:
    took = {name: round(value, 3) for name, value in asdict(result.took).items() if value is not None}
    return asdict(result) | {"took": took}


def _read(recorded: Mapping[str, Any]) -> Result:
    known = {field.name: recorded[field.name] for field in fields(Result)}
    return Result(**known | {"took": Usage(**recorded["took"])})
