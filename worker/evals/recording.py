"""A run as JSON: for programs, and as the baseline of a later run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from worker.errors import StartError
from worker.evals.answer import Usage
from worker.evals.case import Case
from worker.evals.differences import Interval
from worker.evals.eval_runner import fingerprint
from worker.evals.outcome import Outcome, Result, Row

FORMAT = 1
BYTES_MAX = 256 * 2**20
MISSING_SHOWN_MAX = 3


def as_json(outcome: Outcome) -> dict[str, Any]:
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
        "score": _row(outcome.overall),
        "groups": [_row(row) for row in outcome.groups],
        "graders": [_row(row) for row in outcome.graders],
        "costs": [
            {
                "name": cost.name,
                "median": cost.one,
                "median_against": cost.other,
                "times": cost.ratio and _interval(cost.ratio),
            }
            for cost in outcome.costs
        ],
        "notes": list(outcome.notes),
        "cases": cases,
    }


def read_recorded(path: Path, cases: Sequence[Case]) -> tuple[str, list[Result]]:
    """The name of the side `model` in an earlier run, and its results of these cases. Raises StartError."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise StartError(f"{path} is larger than {BYTES_MAX >> 20} MiB")
        told = orjson.loads(path.read_bytes())
        if told["format"] != FORMAT:
            raise StartError(f"{path}: format: it was written by another version: run the suite again with --json")
        known = {each["id"]: each for each in told["cases"]}
        name = str(told["model"])
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
    return {
        "id": result.id,
        "group": result.group,
        "fingerprint": result.fingerprint,
        "score": result.score,
        "grades": dict(result.grades),
        "took": took,
        "answer": dict(result.shown),
        "failed": result.failed,
    }


def _read(told: Mapping[str, Any]) -> Result:
    return Result(
        *(told["id"], told["group"], told["fingerprint"], told["grades"], float(told["score"])),
        took=Usage(**told["took"]),
        shown=told["answer"],
        failed=bool(told["failed"]),
    )


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "cases": row.cases,
        "score": row.one,
        "score_against": row.other,
        "difference": row.difference and _interval(row.difference),
    }


def _interval(interval: Interval) -> dict[str, float]:
    return {name: round(value, 6) for name, value in asdict(interval).items()}
