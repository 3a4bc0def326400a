"""`firsttoken models`: which there are, what one is, and how to get it here."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, replace
from pathlib import Path

import orjson
from tqdm import tqdm

from inference.catalogue import BUNDLED, HUB_FILE, PRESETS, Preset, bundled, files_in, find, preset
from inference.facts import Facts, facts_of
from inference.footprint import Footprint
from inference.llama import LlamaModel
from inference.machine import memory_available
from inference.sizes import in_words
from worker.config import Config
from worker.download import Download
from worker.errors import StartError
from worker.home import Home
from worker.start import engine_config

SHA256 = re.compile(r"[0-9a-f]{64}")


async def list_models(config: Config, *, as_json: bool) -> None:
    folder = Home(config.home).models
    if as_json:
        presets = [{**asdict(model), "here": (folder / model.file_name).is_file()} for model in PRESETS]
        others = [str(path) for path in _others(folder)]
        report = {"bundled": [asdict(model) for model in BUNDLED], "presets": presets, "files": others}
        print(orjson.dumps(report, default=str, option=orjson.OPT_INDENT_2).decode())
        return
    print(f"{'name':<24}{'size':>9}  {'context':>7}  {'state':<8} licence and use")
    for model in BUNDLED:
        print(f"{model.name:<24}{in_words(model.path.stat().st_size):>9}  {'':>7}  bundled  {model.purpose}")
    for entry in PRESETS:
        print(_row(entry, folder))
    for path in _others(folder):
        print(f"{path.stem:<24}{in_words(path.stat().st_size):>9}  {'':>7}  here     {path}")
    print("\nfirsttoken models pull NAME fetches one; firsttoken serve --model NAME serves it.")


async def show_model(config: Config, *, name: str, as_json: bool) -> None:
    entry = preset(name)
    folder = Home(config.home).models
    if entry and not (folder / entry.file_name).is_file():
        _print_preset(entry, as_json=as_json)
        return
    path = find(Path(name), folder)
    facts, footprint = await asyncio.to_thread(_examine, path, config)
    if as_json:
        report = {**asdict(facts), "memory": {**asdict(footprint), "total": footprint.total}}
        print(orjson.dumps(report, default=str, option=orjson.OPT_INDENT_2).decode())
        return
    _print_facts(facts, footprint)
    if shipped := bundled(name):
        print(f"\n{shipped.card.read_text()}")


async def pull_model(config: Config, *, name: str, sha256: str | None) -> None:
    if sha256 is not None and not SHA256.fullmatch(sha256.lower()):
        raise StartError("--sha256 must be the 64 hexadecimal digits of a checksum")
    entry = _pullable(name)
    home = Home(config.home)
    home.prepare()
    target = home.models / entry.file_name
    if target.exists():
        raise StartError(f"{target} is here already: serve it with --model, or remove it to pull it again")
    expected = sha256.lower() if sha256 else entry.sha256
    with tqdm(unit="B", unit_scale=True, desc=entry.file_name, disable=None) as bar:

        def report(here: int, total: int | None) -> None:
            bar.total = total
            bar.update(here - bar.n)

        fetched = await Download(entry.url(config.hub), target, sha256=expected, report=report).fetch()
    checked = "as it should be" if fetched.checked else "with nothing to compare it to"
    print(f"{target}\nsha256 {fetched.sha256}, {checked}")
    print(f"\nfirsttoken serve --model {name if preset(name) else target}")
    if entry.draft:
        print(f"\nA draft makes it faster: firsttoken models pull {entry.draft}, then add --draft {entry.draft}")


def _pullable(name: str) -> Preset:
    """A preset, or OWNER/REPOSITORY/FILE.gguf of the hub. Raises StartError."""
    if entry := preset(name):
        return entry
    if bundled(name):
        raise StartError(f"{name} ships with Firsttoken: firsttoken serve --model {name}")
    if match := HUB_FILE.fullmatch(name):
        return Preset(name, match["repository"], match["file"], size=0, context=0, licence="not stated")
    names = ", ".join(model.name for model in PRESETS)
    raise StartError(f"no preset {name}: name one of {names}, or a file of the hub as OWNER/REPOSITORY/FILE.gguf")


def _others(folder: Path) -> list[Path]:
    """Files that are here and in no catalogue."""
    known = {model.file_name for model in PRESETS}
    return [path for path in files_in(folder) if path.name not in known]


def _examine(path: Path, config: Config) -> tuple[Facts, Footprint]:
    model = LlamaModel.load(path, weights=False)
    try:
        return facts_of(model), Footprint.of(
            model, engine_config(replace(config, model=path)), available=memory_available()
        )
    finally:
        model.close()


def _row(entry: Preset, folder: Path) -> str:
    state = "here" if (folder / entry.file_name).is_file() else "-"
    use = "; ".join(part for part in (entry.licence, entry.note) if part)
    return f"{entry.name:<24}{in_words(entry.size):>9}  {entry.context:>7}  {state:<8} {use}"


def _print_preset(entry: Preset, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps({**asdict(entry), "here": False}, option=orjson.OPT_INDENT_2).decode())
        return
    rows = {
        "repository": entry.repository,
        "file": f"{entry.file}, about {in_words(entry.size)}",
        "context": f"{entry.context} tokens",
        "licence": entry.licence,
        "sha256": entry.sha256 or "unknown here: what the hub declares counts",
        "draft": entry.draft or "none",
        "note": entry.note or "none",
    }
    _print_rows(rows)
    print(f"\nIt is not here yet: firsttoken models pull {entry.name}")


def _print_facts(facts: Facts, footprint: Footprint) -> None:
    _print_rows(
        {
            "file": f"{facts.path}, {in_words(facts.file_bytes)}",
            "title": facts.title,
            "architecture": f"{facts.architecture}, {facts.layers} layers of width {facts.dimensions}",
            "parameters": f"{facts.parameters / 1e6:,.1f} million, {facts.quantisation}",
            "context": f"{facts.context} tokens",
            "tokenizer": f"{facts.tokenizer}, {facts.vocabulary} tokens",
            "template": facts.template,
            "licence": facts.licence,
            "memory": f"{in_words(footprint.total)} with these settings: weights {in_words(footprint.weights)}, "
            f"KV cache {in_words(footprint.kv_cache)}, steps {in_words(footprint.working)}",
        }
    )


def _print_rows(rows: dict[str, str]) -> None:
    for name, value in rows.items():
        print(f"{name:<13}{value}")
