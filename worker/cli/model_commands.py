"""`firsttoken models`: list, show and download models."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from inference.config import EngineConfig
from inference.llama import LlamaModel, model_name
from inference.provisioning.catalogue import (
    BUNDLED,
    HUB_FILE,
    PRESETS,
    SMOL_CHAT,
    Preset,
    bundled,
    files_in,
    find,
    names_of,
    preset,
)
from inference.provisioning.fit import CannotServe, allow
from inference.provisioning.gguf_metadata import GgufMetadata, read_metadata
from inference.provisioning.machine import room_of
from inference.provisioning.memory import Footprint, Proportions, in_words
from worker.cli.download import shown
from worker.cli.weights import fetch, make
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
    print(f"{'name':<24}{'size':>9}  {'context':>7}  {'state':<8} licence and use")
    for model in BUNDLED:
        print(f"{model.name:<24}{in_words(model.path.stat().st_size):>9}  {'':>7}  bundled  {model.purpose}")
    state = "here" if (folder / SMOL_CHAT.file_name).is_file() else "-"
    size = in_words(SMOL_CHAT.size)
    print(f"{SMOL_CHAT.name:<24}{size:>9}  {SMOL_CHAT.context:>7}  {state:<8} {SMOL_CHAT.purpose}")
    for entry in PRESETS:
        print(_row(entry, folder))
    for path in _others(folder):
        print(f"{path.stem:<24}{in_words(path.stat().st_size):>9}  {'':>7}  here     {path}")
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
    known = {model.file_name for model in (SMOL_CHAT, *PRESETS)}
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


def _row(entry: Preset, folder: Path) -> str:
    state = "here" if (folder / entry.file_name).is_file() else "-"
    use = "; ".join(part for part in (entry.licence, entry.note) if part)
    return f"{entry.name:<24}{in_words(entry.size):>9}  {entry.context:>7}  {state:<8} {use}"


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
    for name, value in rows.items():
        print(f"{name:<13}{value}")
