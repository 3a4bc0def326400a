"""The batch curve: tokens per second and time per token from 1 to 64 streams, ours and llama-server's, as a picture.

    python -m benchmarks.engine.curve [--shape 0.1B | --gguf FILE] [--streams 1 2 4 ...] [--rounds 2] [--tokens 64]
        [--svg FILE] [--json FILE] [--with FILE ...]

If this build of llama.cpp has a GPU, each side is measured on the GPU and on the CPU. Every stream has a cached prompt
and generates `--tokens` tokens with greedy sampling. Both sides alternate within a round; the table has the medians.
`--with` adds points that other runs have written with `--json`, for example on another machine. Prints a Markdown
table.

Run it on an idle machine. For a single stream, the table shows how many bytes of weights were read per second: the
memory bandwidth of the device limits it, whatever the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from html import escape
from math import ceil, floor, log2, log10
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.engine.measures import THROUGHPUT, TPOT
from benchmarks.engine.servers import OURS, Setup, firsttoken, llama_server
from benchmarks.engine.synthetic import ALL_SHAPES, synthetic
from benchmarks.engine.target import Endpoint, session
from benchmarks.engine.workloads import warm
from deploy.setup import cache_folder
from inference.llama import LlamaModel, computing, devices, has_gpu
from inference.weight_placement import Split
from worker.config import prepare_process

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


STREAMS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 1024  # the prompt of a warm client, and its answer
THEIRS = "llama-server"
CPU = "CPU"


@asynccontextmanager
async def sides(setup: Setup, http: aiohttp.ClientSession) -> AsyncIterator[list[tuple[str, Endpoint]]]:
    """Ours and llama-server on one device, with flash attention set to what is usually best there."""
    theirs = llama_server(setup, http, slots=setup.streams, flash=setup.gpu_layers != 0)
    async with AsyncExitStack() as running:
        pair = [
            (OURS, await running.enter_async_context(firsttoken(setup, http))),
            (THEIRS, await running.enter_async_context(theirs)),
        ]
        for _, side in pair:
            await warm(setup.streams, 1, 4).run(side, "nothing is measured yet")
        yield pair


async def measured(setup: Setup, device: str, streams: Sequence[int], rounds: int, tokens: int) -> list[Point]:
    """Measure every number of streams on both sides."""
    async with session() as http, sides(setup, http) as pair:
        return await measured_beside(pair, device, streams, rounds, tokens)


async def measured_beside(
    pair: Sequence[tuple[str, Endpoint]], device: str, streams: Sequence[int], rounds: int, tokens: int
) -> list[Point]:
    """Measure every number of streams on these sides, which are running."""
    points = []
    for count in streams:
        found: dict[str, list[dict[str, float]]] = {}
        for number in range(rounds):
            for name, side in pair:
                numbers = await warm(count, 1, tokens).run(side, f"{device}/{count}/{number}")
                found.setdefault(name, []).append(numbers)
                told = f"{numbers[THROUGHPUT]:.1f} tokens/s, {numbers[TPOT]:.1f} ms"
                print(f"{device} | {count} | {name} | {told}", file=sys.stderr, flush=True)
        for name, rows in found.items():
            tokens_per_s, tpot_ms = (median(row[measure] for row in rows) for measure in (THROUGHPUT, TPOT))
            points.append(Point(device, name, count, tokens_per_s, tpot_ms))
    return points


def table(points: Sequence[Point], weight_bytes: int) -> list[str]:
    """The lines of a Markdown table. Only rows with a single stream have a value in the last column."""
    lines = [
        "| device | streams | llama-server, tokens/s | ours | ratio | llama-server, ms/token | ours | weights read |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by_place = {(point.device, point.streams, point.side): point for point in points}
    for (device, streams, side), ours in by_place.items():
        if side != OURS or (theirs := by_place.get((device, streams, THEIRS))) is None:
            continue
        read = f"{weight_bytes / ours.tpot_ms / 1e6:.1f} GB/s" if streams == 1 else ""
        lines.append(
            f"| {device} | {streams} | {theirs.tokens_per_s:.1f} | {ours.tokens_per_s:.1f} "
            f"| {ours.tokens_per_s / theirs.tokens_per_s:.2f} | {theirs.tpot_ms:.1f} | {ours.tpot_ms:.1f} | {read} |"
        )
    return lines


async def main_async(options: argparse.Namespace) -> None:
    path = options.gguf or synthetic(ALL_SHAPES[options.shape], cache_folder() / "models")
    points = [Point(**each) for file in options.merged for each in json.loads(file.read_text())["points"]]
    places = {CPU: 0}
    if has_gpu():
        places = {computing(devices(), Split())[0].description: -1, **places}
    for device, layers in places.items() if options.streams else ():
        setup = Setup(path, max(options.streams), CONTEXT, gpu_layers=layers)
        points += await measured(setup, device, options.streams, options.rounds, options.tokens)
    model = LlamaModel.load(path, weights=False)
    print(*table(points, model.weight_bytes), sep="\n")
    model.close()
    if options.svg:
        options.svg.write_text(drawn(points, path.stem), "utf-8")
    if options.json:
        options.json.write_text(json.dumps({"model": path.stem, "points": [asdict(each) for each in points]}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shape", choices=ALL_SHAPES, default="0.1B", help="size of the synthetic model (default 0.1B)")
    which.add_argument("--gguf", type=Path, help="a model whose answers do not end early")
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS, help="none: only draw the points of --with")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer (default 64)")
    parser.add_argument("--svg", type=Path, help="write the picture to this file")
    parser.add_argument("--json", type=Path, help="also write all points to this file")
    parser.add_argument("--with", dest="merged", type=Path, nargs="+", default=[], help="points of other runs")
    prepare_process()
    asyncio.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
