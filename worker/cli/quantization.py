"""`firsttoken models quantize` and `kv`: how smaller weights, keys and values change the answers of a model."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from inference.attention import F16, Q4_0, Q8_0
from inference.bundled import FOLDER
from inference.config import default_threads
from inference.llama import QUANTISATIONS, LlamaModel
from inference.provisioning.catalogue import find
from inference.provisioning.comparison import Comparison
from inference.provisioning.isolated_process import RunFailed, run_isolated
from inference.provisioning.machine import disk_free
from inference.provisioning.memory import KV_BYTES, Proportions, in_words
from inference.provisioning.probe import Speed, measure_isolated
from worker.config import Config
from worker.errors import StartError
from worker.home import Home

TEXT = FOLDER / "MODEL_CARD.md"  # ordinary English with tables
QUANTIZE_TIMEOUT_S = 6 * 3600.0  # hundreds of gigabytes on a slow disk
COMPARE_TIMEOUT_S = 900.0  # its budget, and loading two large files


@dataclass(frozen=True, slots=True)
class Report:
    """The pairs are (before, after)."""

    bytes: tuple[int, int]
    comparison: Comparison
    speeds: tuple[Speed, Speed]


async def quantize_model(
    config: Config, *, source: str, target: str, kind: str, text: str | None, as_json: bool
) -> None:
    """Native code runs in processes of its own, and the target appears only when it is complete."""
    if kind.lower() not in QUANTISATIONS:
        raise StartError(f"--type must be one of {', '.join(QUANTISATIONS)}, not {kind}")
    before, after, sample = find(Path(source), Home(config.home).models), Path(target), Path(text or TEXT)
    _check_target(before, after)
    check_text(sample)
    await asyncio.to_thread(_quantize, before, after, kind.lower(), config)
    try:
        report = await asyncio.to_thread(_report, before, after, sample, config)
    except RunFailed as failure:
        raise StartError(f"{after} is written, but could not be compared: {failure}") from failure
    print(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2).decode() if as_json else _weights_table(report))


def _check_target(source: Path, target: Path) -> None:
    if target.exists():
        raise StartError(f"{target} already exists: remove it, or choose another file")
    if not target.parent.is_dir():
        raise StartError(f"there is no folder {target.parent}: create it, or choose another file")
    # An upper bound for every smaller type; if the file grows (from q4 to f16), the disk itself reports a lack of
    # space.
    needed, free = source.stat().st_size, disk_free(target.parent)
    if needed > free:
        raise StartError(f"up to {in_words(needed)} are needed, but only {in_words(free)} are free in {target.parent}")


def check_text(text: Path) -> None:
    if not text.is_file():
        raise StartError(f"no text file at {text} (--text)")


def _quantize(source: Path, target: Path, kind: str, config: Config) -> None:
    part = target.with_name(f"{target.name}.part")
    threads = str(config.threads or default_threads())
    try:
        run_isolated(
            "inference.provisioning.quantize", str(source), str(part), kind, threads, timeout_s=QUANTIZE_TIMEOUT_S
        )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _report(before: Path, after: Path, text: Path, config: Config) -> Report:
    threads = config.threads or default_threads()
    arguments = (str(before), str(after), str(text), str(threads), str(config.gpu_layers))
    compared = run_isolated("inference.provisioning.comparison", *arguments, timeout_s=COMPARE_TIMEOUT_S)
    sizes = before.stat().st_size, after.stat().st_size
    first, second = (measure_isolated(path, threads=threads, gpu_layers=config.gpu_layers) for path in (before, after))
    return Report(sizes, Comparison(**json.loads(compared)), (first, second))


def _weights_table(report: Report) -> str:
    (size, smaller), (slow, fast), found = report.bytes, report.speeds, report.comparison
    rows = [
        ("", "before", "after"),
        ("size", in_words(size), in_words(smaller)),
        ("perplexity", f"{found.perplexity_before:.3f}", f"{found.perplexity_after:.3f}"),
        ("prefill tokens/s", f"{slow.prefill:.0f}", f"{fast.prefill:.0f}"),
        ("decode tokens/s", f"{slow.decode:.1f}", f"{fast.decode:.1f}"),
    ]
    lines = [f"{name:<18}{first:>12}{second:>12}" for name, first, second in rows]
    return "\n".join(
        [
            *lines,
            f"\nOver {found.tokens} tokens the most probable next token stayed the same in {found.agreement:.1%}; "
            f"mean divergence {found.divergence:.4f} nats.",
        ]
    )


KINDS = (Q8_0, Q4_0)
TIMEOUT_S = 600.0  # per type: the comparison's budget, and loading a large file


async def compare_kv(config: Config, *, name: str, text: str | None, as_json: bool) -> None:
    """Raises StartError."""
    path, sample = find(Path(name), Home(config.home).models), Path(text or TEXT)
    check_text(sample)
    with closing(LlamaModel.load(path, weights=False)) as model:
        numbers, takes = Proportions.of(model).kv_numbers, Proportions.of(model).takes_quantised
    if not takes:
        raise StartError(f"{path.name} has heads that only an {F16} KV cache can store")
    bytes_per_token = {kind: round(numbers * KV_BYTES[kind]) for kind in (F16, *KINDS)}
    found = {kind: await asyncio.to_thread(_compared, path, sample, kind, config) for kind in KINDS}
    if as_json:
        report = {"bytes_per_token": bytes_per_token, **{kind: asdict(each) for kind, each in found.items()}}
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    else:
        print(_kv_table(bytes_per_token, found))


def _compared(path: Path, text: Path, kind: str, config: Config) -> Comparison:
    threads = config.threads or default_threads()
    arguments = (str(path), str(path), str(text), str(threads), str(config.gpu_layers), kind)
    try:
        return Comparison(
            **json.loads(run_isolated("inference.provisioning.comparison", *arguments, timeout_s=TIMEOUT_S))
        )
    except RunFailed as failure:
        raise StartError(f"{kind} could not be compared: {failure}") from failure


def _kv_table(bytes_per_token: dict[str, int], found: dict[str, Comparison]) -> str:
    first = found[KINDS[0]]
    rows = [("", "bytes/token", "perplexity", "same token", "divergence")]
    rows.append((F16, str(bytes_per_token[F16]), f"{first.perplexity_before:.3f}", "", ""))
    for kind, each in found.items():
        facts = (f"{each.perplexity_after:.3f}", f"{each.agreement:.1%}", f"{each.divergence:.4f}")
        rows.append((kind, str(bytes_per_token[kind]), *facts))
    lines = [f"{name:<8}" + "".join(f"{cell:>14}" for cell in cells) for name, *cells in rows]
    note = f"Measured over {first.tokens} tokens; divergence from {F16} in nats. Choose a type with --kv-type."
    return "\n".join([*lines, "", note])
