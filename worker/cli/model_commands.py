"""`firsttoken models`: list, show, download and quantize models, and compare what smaller weights, keys and values
change."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from inference.attention import F16, Q4_0, Q8_0
from inference.bundled import FOLDER
from inference.config import EngineConfig, default_threads
from inference.llama import QUANTISATIONS, LlamaModel, model_name, quantize
from inference.provisioning.catalogue import (
    BUNDLED,
    HUB_FILE,
    PRESETS,
    SMOL_CHAT,
    Adapted,
    Preset,
    bundled,
    files_in,
    find,
    names_of,
    preset,
)
from inference.provisioning.fit import CannotServe, allow
from inference.provisioning.gguf_metadata import GgufMetadata, read_metadata
from inference.provisioning.isolated_process import Isolated, RunFailed
from inference.provisioning.machine import disk_free, room_of
from inference.provisioning.memory import KV_BYTES, Footprint, Proportions, in_words
from inference.provisioning.quantization import Comparison, compare
from inference.provisioning.speed import Speed, isolated_stream_speed
from worker.cli.download import fetch, make, shown
from worker.cli.evals.table import aligned
from worker.config import Config
from worker.engines.engine_config import engine_config
from worker.errors import StartError
from worker.home import Home

SHA256 = re.compile(r"[0-9a-f]{64}")
NO_SHAPE = (0, 0, 0, 0, 0)  # of a file that has not been opened
# Determined by memory, as programs read it.
SERVED = ("parallel", "resident", "windowed", "context", "kv_type", "gpu_layers")


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory a model would need here and how it would be served; None: it would be refused."""

    text: str
    need: Footprint
    served: EngineConfig | None

    @property
    def report(self) -> dict[str, object]:
        served = None if self.served is None else {name: getattr(self.served, name) for name in SERVED}
        return {**asdict(self.need), "total": self.need.total, "served": served}


async def list_models(config: Config, *, as_json: bool) -> None:
    folder = Home(config.home).models
    if as_json:
        presets = [{**asdict(model), "here": (folder / model.file_name).is_file()} for model in PRESETS]
        others = [str(path) for path in _others(folder)]
        made = [{**asdict(SMOL_CHAT), "here": (folder / SMOL_CHAT.file_name).is_file()}]
        shipped = [asdict(model) for model in BUNDLED]
        report = {"bundled": shipped, "made": made, "presets": presets, "files": others}
        print(orjson.dumps(report, default=str, option=orjson.OPT_INDENT_2).decode())
        return

    def state(model: Adapted | Preset) -> str:
        return "here" if (folder / model.file_name).is_file() else "-"

    rows = [
        ("name", "size", "context", "state", "licence and use"),
        *((each.name, in_words(each.path.stat().st_size), "", "bundled", each.purpose) for each in BUNDLED),
        (SMOL_CHAT.name, in_words(SMOL_CHAT.size), str(SMOL_CHAT.context), state(SMOL_CHAT), SMOL_CHAT.purpose),
        *((each.name, in_words(each.size), str(each.context), state(each), _use(each)) for each in PRESETS),
        *((path.stem, in_words(path.stat().st_size), "", "here", str(path)) for path in _others(folder)),
    ]
    print("\n".join(aligned(rows, texts=(0, 3, 4))))
    print("\nDownload a model with `firsttoken models pull NAME`, and serve it with `firsttoken serve --model NAME`.")


async def show_model(config: Config, *, name: str, as_json: bool) -> None:
    entry = preset(name)
    folder = Home(config.home).models
    if entry and not (folder / entry.file_name).is_file():
        engine = replace(engine_config(config), model_path=Path(entry.file_name), measured=None)
        _print_preset(entry, _memory(entry.proportions, engine), as_json=as_json)
        return
    path = find(Path(name), folder)
    facts, memory = await asyncio.to_thread(_examine, path, config)
    if as_json:
        print(
            orjson.dumps({**asdict(facts), "memory": memory.report}, default=str, option=orjson.OPT_INDENT_2).decode()
        )
        return
    _print_facts(facts, memory)
    if shipped := SMOL_CHAT if path.name == SMOL_CHAT.file_name else bundled(name):
        print(f"\n{shipped.card.read_text()}")


async def pull_model(config: Config, *, name: str, sha256: str | None) -> None:
    if sha256 is not None and not SHA256.fullmatch(sha256.lower()):
        raise StartError("--sha256 must be the 64 hexadecimal digits of a checksum")
    home = Home(config.home)
    home.prepare()
    if name == SMOL_CHAT.name:
        with shown(SMOL_CHAT.base.name) as report:
            print(await make(SMOL_CHAT, home.models, report, source=config.weights))
        print(f"\nfirsttoken serve --model {name}")
        return
    entry = _pullable(name)
    target = home.models / entry.file_name
    if target.exists():
        raise StartError(f"{target} already exists: serve it with --model, or delete it to download it again")
    expected = sha256.lower() if sha256 else entry.sha256
    source = config.weights if entry == SMOL_CHAT.base else None
    with shown(entry.file_name) as report:
        fetched = await fetch(entry, target, report, sha256=expected, hub=config.hub, source=source)
    checked = "verified" if fetched.checked else "not verified: no checksum is known"
    print(f"{target}\nsha256 {fetched.sha256}, {checked}")
    print(f"\nfirsttoken serve --model {name if preset(name) else target}")
    if entry.draft:
        print(
            f"\nTo speed it up with a draft model: firsttoken models pull {entry.draft}, then add --draft {entry.draft}"
        )


def _pullable(name: str) -> Preset:
    """A preset, or OWNER/REPOSITORY/FILE.gguf on the hub. Raises StartError."""
    if entry := preset(name):
        return entry
    if bundled(name):
        raise StartError(f"{name} ships with Firsttoken: firsttoken serve --model {name}")
    if match := HUB_FILE.fullmatch(name):
        return Preset(name, match["repository"], match["file"], size=0, context=0, shape=NO_SHAPE, licence="not stated")
    names = ", ".join(model.name for model in PRESETS)
    raise StartError(
        f"no model {name} in the catalogue: choose one of {names}, or a file of the hub as OWNER/REPOSITORY/FILE.gguf"
    )


def _others(folder: Path) -> list[Path]:
    """Local files that are in no catalogue."""
    known = {SMOL_CHAT.file_name, *(model.file_name for model in PRESETS)}
    return [path for path in files_in(folder) if path.name not in known]


def _examine(path: Path, config: Config) -> tuple[GgufMetadata, Memory]:
    with closing(LlamaModel.load(path, weights=False)) as model:
        return read_metadata(model), _memory(Proportions.of(model), engine_config(replace(config, model=path)))


def _memory(model: Proportions, engine: EngineConfig) -> Memory:
    """How `serve` would divide this machine's memory."""
    draft = None
    if engine.draft_path:
        with closing(LlamaModel.load(engine.draft_path, weights=False)) as opened:
            draft = Proportions.of(opened)
    try:
        allowance = allow(engine, model, draft, room_of(engine))
    except CannotServe as error:
        return Memory(str(error), error.need, None)
    return Memory(allowance.text, allowance.need, allowance.config)


def _use(entry: Preset) -> str:
    return "; ".join(part for part in (entry.licence, entry.note) if part)


def _print_preset(entry: Preset, memory: Memory, *, as_json: bool) -> None:
    if as_json:
        report = {**asdict(entry), "here": False, "memory": memory.report}
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
        return
    rows = {
        "repository": entry.repository,
        **({"package": entry.package} if entry.package else {}),
        "file": f"{entry.file}, about {in_words(entry.size)}",
        "context": f"{entry.context} tokens",
        "licence": entry.licence,
        "sha256": entry.sha256 or "not in the catalogue: the hub's checksum is used",
        "draft": entry.draft or "none",
        "note": entry.note or "none",
        "memory": memory.text,
    }
    _print_rows(rows)
    print(f"\nIt is not here yet: firsttoken models pull {entry.name}")


def _print_facts(facts: GgufMetadata, memory: Memory) -> None:
    _print_rows(
        {
            "file": f"{facts.path}, {in_words(facts.file_bytes)}",
            "title": facts.title,
            "names": ", ".join(dict.fromkeys([model_name(facts.path), *names_of(facts.path)])),
            "architecture": f"{facts.architecture}, {facts.layers} layers of width {facts.dimensions}",
            "parameters": f"{facts.parameters / 1e6:,.1f} million, {facts.quantisation}",
            "context": f"{facts.context} tokens",
            "tokenizer": f"{facts.tokenizer}, {facts.vocabulary} tokens",
            "template": facts.template,
            **({"takes": str(facts.capabilities)} if facts.capabilities else {}),
            "system": " ".join(facts.system.split()) or "no default",
            "sampling": str(facts.sampling),
            "licence": facts.licence,
            "memory": memory.text,
        }
    )


def _print_rows(rows: dict[str, str]) -> None:
    print("\n".join(aligned([*rows.items()], texts=(0, 1))))


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


def _text_of(path: Path) -> str:
    return path.read_text("utf-8", "replace")


def _quantize(source: Path, target: Path, kind: str, config: Config) -> None:
    part = target.with_name(f"{target.name}.part")
    try:
        threads = config.threads or default_threads()
        Isolated(quantize, timeout_s=QUANTIZE_TIMEOUT_S)(source, part, kind, threads=threads)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _report(before: Path, after: Path, text: Path, config: Config) -> Report:
    threads = config.threads or default_threads()
    measure = Isolated(compare, timeout_s=COMPARE_TIMEOUT_S)
    compared = measure(before, after, _text_of(text), threads=threads, gpu_layers=config.gpu_layers)
    sizes = before.stat().st_size, after.stat().st_size
    first, second = (
        isolated_stream_speed(path, threads=threads, gpu_layers=config.gpu_layers) for path in (before, after)
    )
    return Report(sizes, compared, (first, second))


def _weights_table(report: Report) -> str:
    (size, smaller), (slow, fast), found = report.bytes, report.speeds, report.comparison
    rows = [
        ("", "before", "after"),
        ("size", in_words(size), in_words(smaller)),
        ("perplexity", f"{found.perplexity_before:.3f}", f"{found.perplexity_after:.3f}"),
        ("prefill tokens/s", f"{slow.prefill:.0f}", f"{fast.prefill:.0f}"),
        ("decode tokens/s", f"{slow.decode:.1f}", f"{fast.decode:.1f}"),
    ]
    return "\n".join(
        [
            *aligned(rows),
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
    measure = Isolated(compare, timeout_s=TIMEOUT_S)
    try:
        return measure(path, path, _text_of(text), threads=threads, gpu_layers=config.gpu_layers, kv_type=kind)
    except RunFailed as failure:
        raise StartError(f"{kind} could not be compared: {failure}") from failure


def _kv_table(bytes_per_token: dict[str, int], found: dict[str, Comparison]) -> str:
    first = found[KINDS[0]]
    rows = [("", "bytes/token", "perplexity", "same token", "divergence")]
    rows.append((F16, str(bytes_per_token[F16]), f"{first.perplexity_before:.3f}", "", ""))
    for kind, each in found.items():
        facts = (f"{each.perplexity_after:.3f}", f"{each.agreement:.1%}", f"{each.divergence:.4f}")
        rows.append((kind, str(bytes_per_token[kind]), *facts))
    note = f"Measured over {first.tokens} tokens; divergence from {F16} in nats. Choose a type with --kv-type."
    return "\n".join([*aligned(rows), "", note])
