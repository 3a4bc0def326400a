"""Draws the batch curve: throughput and time per token over the number of streams. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10

WIDTH, HEIGHT = 330, 260  # of a panel's inside
LEFT, TOP, BETWEEN = 64, 66, 84
COLOURS = ("#2f4b7c", "#c4661f", "#1b7f4b", "#7c2f6e")  # one per device; distinguishable without colour by their labels
INK, PALE, GRID = "#1d2430", "#4a5361", "#dde2ea"


@dataclass(frozen=True, slots=True)
class Point:
    device: str
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
    lines = sorted({(point.device, point.side) for point in points})
    height = TOP + HEIGHT + 52 + 20 * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="{INK}">{escape(model)}: by number of streams</text>',
        *_panel(points, LEFT, "tokens per second, all streams", lambda point: point.tokens_per_s),
        *_panel(points, LEFT + WIDTH + BETWEEN, "milliseconds per token, each stream", lambda point: point.tpot_ms),
    ]
    for number, (device, side) in enumerate(lines):
        y = TOP + HEIGHT + 56 + 20 * number
        parts.append(
            f'<line x1="{LEFT}" y1="{y - 4}" x2="{LEFT + 36}" y2="{y - 4}" {_stroke(points, device, side)}/>'
            f'<text x="{LEFT + 46}" y="{y}" fill="{INK}">{escape(side)}, {escape(device)}</text>'
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
    for device, side in sorted({(point.device, point.side) for point in points}):
        own = sorted((each for each in points if (each.device, each.side) == (device, side)), key=_streams)
        corners = " ".join(f"{x(each.streams)},{y(value(each))}" for each in own)
        yield f'<polyline points="{corners}" fill="none" {_stroke(points, device, side)}/>'
        for each in own:
            colour = _colour(points, device)
            yield f'<circle cx="{x(each.streams)}" cy="{y(value(each))}" r="3" fill="{colour}"/>'


def _ticks(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 times every power of ten, within the range."""
    for exponent in range(floor(low), ceil(high) + 1):
        for digit in (1, 2, 5):
            if low <= log10(tick := digit * 10.0**exponent) <= high:
                yield tick


def _streams(point: Point) -> int:
    return point.streams


def _colour(points: Sequence[Point], device: str) -> str:
    return COLOURS[sorted({point.device for point in points}).index(device) % len(COLOURS)]


def _stroke(points: Sequence[Point], device: str, side: str) -> str:
    """The line style of a curve: all sides but the first by name are dashed."""
    dashed = "" if side == min(point.side for point in points) else ' stroke-dasharray="6 4"'
    return f'stroke="{_colour(points, device)}" stroke-width="2"{dashed}'
