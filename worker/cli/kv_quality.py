"""`firsttoken models kv`: how quantized keys and values change the answers of a model, and what they save."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import orjson

from inference.attention import F16, Q4_0, Q8_0
from inference.config import default_threads
from inference.llama import LlamaModel
from inference.provisioning.catalogue import find
from inference.provisioning.comparison import Comparison
from inference.provisioning.isolated_process import RunFailed, run_isolated
from inference.provisioning.memory import KV_BYTES, Proportions
from worker.cli.quantize import TEXT, check_text
from worker.config import Config
from worker.errors import StartError
from worker.home import Home

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
        print(_table(bytes_per_token, found))


def _compared(path: Path, text: Path, kind: str, config: Config) -> Comparison:
    threads = config.threads or default_threads()
    arguments = (str(path), str(path), str(text), str(threads), str(config.gpu_layers), kind)
    try:
        return Comparison(
            **json.loads(run_isolated("inference.provisioning.comparison", *arguments, timeout_s=TIMEOUT_S))
        )
    except RunFailed as failure:
        raise StartError(f"{kind} could not be compared: {failure}") from failure


def _table(bytes_per_token: dict[str, int], found: dict[str, Comparison]) -> str:
    first = found[KINDS[0]]
    rows = [("", "bytes/token", "perplexity", "same token", "divergence")]
    rows.append((F16, str(bytes_per_token[F16]), f"{first.perplexity_before:.3f}", "", ""))
    for kind, each in found.items():
        facts = (f"{each.perplexity_after:.3f}", f"{each.agreement:.1%}", f"{each.divergence:.4f}")
        rows.append((kind, str(bytes_per_token[kind]), *facts))
    lines = [f"{name:<8}" + "".join(f"{cell:>14}" for cell in cells) for name, *cells in rows]
    note = f"Measured over {first.tokens} tokens; divergence from {F16} in nats. Choose a type with --kv-type."
    return "\n".join([*lines, "", note])
