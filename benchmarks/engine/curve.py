"""The batch curve: tokens per second and time per token by number of streams, ours and llama-server's, as a picture.

Every stream has a cached prompt and generates with greedy sampling. Both sides alternate within a round, and the points
are medians.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10
from statistics import median

from benchmarks.engine.measures import THROUGHPUT, TPOT
from benchmarks.engine.target import Endpoint
from benchmarks.engine.workloads import warm

WIDTH, HEIGHT = 330, 260  # of a panel's inside
LEFT, TOP, BETWEEN = 64, 66, 84
INK, PALE, GRID, LINE = "#1d2430", "#4a5361", "#dde2ea", "#2f4b7c"


@dataclass(frozen=True, slots=True)
class Point:
    side: str
    streams: int
    tokens_per_s: float
    tpot_ms: float


def drawn(points: Sequence[Point], model: str) -> str:
    """The picture as SVG. Both axes are logarithmic, so perfect scaling is a straight line. Raises ValueError if there
    are no points."""
    if not points:
        raise ValueError("there is nothing to draw")
    whole = LEFT + 2 * WIDTH + BETWEEN + 24
    sides = sorted({point.side for point in points})
    height = TOP + HEIGHT + 52 + 20 * len(sides)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="{INK}">{escape(model)}: by number of streams</text>',
        *_panel(points, LEFT, "tokens per second, all streams", lambda point: point.tokens_per_s),
        *_panel(points, LEFT + WIDTH + BETWEEN, "milliseconds per token, each stream", lambda point: point.tpot_ms),
    ]
    for number, side in enumerate(sides):
        y = TOP + HEIGHT + 56 + 20 * number
        parts.append(
            f'<line x1="{LEFT}" y1="{y - 4}" x2="{LEFT + 36}" y2="{y - 4}" {_stroke(points, side)}/>'
            f'<text x="{LEFT + 46}" y="{y}" fill="{INK}">{escape(side)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _panel(points: Sequence[Point], left: int, title: str, value: Callable[[Point], float]) -> Iterator[str]:
    counts = sorted({point.streams for point in points})
    low, high = (log10(bound) for bound in (min(map(value, points)), max(map(value, points))))
    low, high = floor(low * 2) / 2, max(ceil(high * 2) / 2, floor(low * 2) / 2 + 0.5)
    reach = max(1.0, log2(counts[-1]) - log2(counts[0]))

    def x(streams: int) -> float:
        return round(left + WIDTH * (log2(streams) - log2(counts[0])) / reach, 1)

    def y(number: float) -> float:
        return round(TOP + HEIGHT * (1 - (log10(number) - low) / (high - low)), 1)

    yield f'<text x="{left}" y="{TOP - 14}" fill="{PALE}">{title}</text>'
    for tick in _ticks(low, high):
        yield (
            f'<line x1="{left}" y1="{y(tick)}" x2="{left + WIDTH}" y2="{y(tick)}" stroke="{GRID}"/>'
            f'<text x="{left - 8}" y="{y(tick) + 4}" text-anchor="end" fill="{PALE}">{tick:g}</text>'
        )
    for count in counts:
        yield f'<text x="{x(count)}" y="{TOP + HEIGHT + 20}" text-anchor="middle" fill="{PALE}">{count}</text>'
    for side in sorted({point.side for point in points}):
        own = sorted((each for each in points if each.side == side), key=lambda point: point.streams)
        corners = " ".join(f"{x(each.streams)},{y(value(each))}" for each in own)
        yield f'<polyline points="{corners}" fill="none" {_stroke(points, side)}/>'
        for each in own:
            yield f'<circle cx="{x(each.streams)}" cy="{y(value(each))}" r="3" fill="{LINE}"/>'


def _ticks(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 times every power of ten, within the range."""
    for exponent in range(floor(low), ceil(high) + 1):
        for digit in (1, 2, 5):
            if low <= log10(tick := digit * 10.0**exponent) <= high:
                yield tick


def _stroke(points: Sequence[Point], side: str) -> str:
    """The line style of a curve: all sides but the first by name are dashed."""
    dashed = "" if side == min(point.side for point in points) else ' stroke-dasharray="6 4"'
    return f'stroke="{LINE}" stroke-width="2"{dashed}'


async def measured(
    pair: Sequence[tuple[str, Endpoint]], streams: Sequence[int], rounds: int, tokens: int
) -> list[Point]:
    """Measure every number of streams on these sides, which are running."""
    points = []
    for count in streams:
        found: dict[str, list[dict[str, float]]] = {}
        for number in range(rounds):
            for name, side in pair:
                numbers = await warm(count, 1, tokens).run(side, f"{count}/{number}")
                found.setdefault(name, []).append(numbers)
                told = f"{numbers[THROUGHPUT]:.1f} tokens/s, {numbers[TPOT]:.1f} ms"
                print(f"{count} | {name} | {told}", file=sys.stderr, flush=True)
        for name, rows in found.items():
            tokens_per_s, tpot_ms = (median(row[measure] for row in rows) for measure in (THROUGHPUT, TPOT))
            points.append(Point(name, count, tokens_per_s, tpot_ms))
    return points
