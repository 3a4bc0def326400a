"""The report of replayed turns: the durations of their spans then and now, and the similarity of the answers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from agents.text_similarity import overlap
from worker.cli.evals.report import aligned, in_markdown, plain

SPANS_MAX = 40  # names of a table; tools name their spans
TURNS_SHOWN_MAX = 20
ALIKE = 0.9  # of the words: a paraphrase


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """Milliseconds by the names of spans: `before` is empty if the trace is gone, `now` if the server reports none."""

    id: str
    before: Mapping[str, float]
    now: Mapping[str, float]
    said_before: str
    said_now: str
    error: str | None = None

    @property
    def likeness(self) -> float:
        """From 0 to 1, by shared words."""
        if self.said_before.split() == self.said_now.split():
            return 1.0
        return overlap(self.said_before, self.said_now)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the turns that have such a span then or now."""

    span: str
    turns: int
    before_ms: float | None
    now_ms: float | None


def totals(spans: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The sums of one turn by name: a turn of several steps has several spans of a name."""
    found: dict[str, float] = defaultdict(float)
    for span in spans:
        found[span["name"]] += float(span["duration_ms"] or 0)
    return dict(found)


def rows(turns: Sequence[ReplayedTurn]) -> list[Row]:
    """In the order in which spans begin."""
    both = [turn for turn in turns if turn.before and turn.now]
    names = dict.fromkeys(name for turn in both for name in (*turn.before, *turn.now))
    return [_row(name, both) for name in list(names)[:SPANS_MAX]]


def table(turns: Sequence[ReplayedTurn]) -> list[str]:
    found = rows(turns)
    return [*(aligned(_cells(found)) if found else []), *([""] if found else []), summary(turns)]


def summary(turns: Sequence[ReplayedTurn]) -> str:
    answered = [turn for turn in turns if turn.error is None]
    if not answered:
        return f"None of {len(turns)} turns was answered."
    likeness = [turn.likeness for turn in answered]
    same = sum(each == 1 for each in likeness)
    other = sum(each < ALIKE for each in likeness)
    missing = f" {len(turns) - len(answered)} more got no answer." if len(answered) < len(turns) else ""
    return (
        f"{len(answered)} turns: {same} answers are the same, {other} share less than {ALIKE:.0%} of their words "
        f"({fmean(likeness):.0%} in the mean).{missing}"
    )


def markdown(turns: Sequence[ReplayedTurn], side: str) -> str:
    """With the turns whose answers differ the most, side by side."""
    parts = [f"# Stored turns, asked again of {plain(side)}", summary(turns)]
    if found := rows(turns):
        parts.append("## Spans\n\nMedians, in milliseconds.\n\n" + in_markdown(_cells(found)))
    shown = sorted(turns, key=lambda turn: turn.likeness)[:TURNS_SHOWN_MAX]
    parts += [_side_by_side(turn) for turn in shown if turn.likeness < 1]
    parts.append(
        "Stored turns were measured under whatever load the worker had then, and could use its cache of earlier "
        "requests."
    )
    return "\n\n".join(parts) + "\n"


def as_json(turns: Sequence[ReplayedTurn], side: str) -> dict[str, Any]:
    return {
        "format": 1,
        "model": side,
        "spans": [asdict(row) for row in rows(turns)],
        "turns": [{**asdict(turn), "likeness": round(turn.likeness, 4)} for turn in turns],
    }


def _side_by_side(turn: ReplayedTurn) -> str:
    cells = [["", "THEN", "NOW"], ["answer", turn.said_before, turn.error or turn.said_now]]
    names = dict.fromkeys((*turn.before, *turn.now)) if turn.before and turn.now else {}
    cells += [[name, _ms(turn.before.get(name)), _ms(turn.now.get(name))] for name in list(names)[:SPANS_MAX]]
    return f"## {turn.id}\n\n" + in_markdown(cells)


def _row(name: str, turns: Sequence[ReplayedTurn]) -> Row:
    before = [turn.before[name] for turn in turns if name in turn.before]
    now = [turn.now[name] for turn in turns if name in turn.now]
    count = sum(name in turn.before or name in turn.now for turn in turns)
    return Row(name, count, median(before) if before else None, median(now) if now else None)


def _cells(found: Sequence[Row]) -> list[list[str]]:
    head = ["SPAN", "TURNS", "THEN", "NOW"]
    return [head, *([row.span, str(row.turns), _ms(row.before_ms), _ms(row.now_ms)] for row in found)]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
