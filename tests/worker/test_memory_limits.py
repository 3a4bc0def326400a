"""A worker takes the memory that there is, says so where that is little, and refuses before it loads anything."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from inference.bundled import CHAT_MODEL
from inference.config import ADJUSTABLE
from inference.generation import Sampling
from inference.prompt import ChatMessage
from tests.serving import ROOT, clean_environment
from tests.worker.cli.test_main import complaint, firsttoken
from worker.config import load
from worker.engines.engine_config import engine_config
from worker.engines.local_model import open_model
from worker.lifecycle.supervisor import Supervisor

ADDRESSES = 600_000_000  # bytes


def test_only_what_nobody_set_may_give_way(tmp_path: Path) -> None:
    home = {"home": str(tmp_path)}
    assert engine_config(load(home, {})).adjustable == ADJUSTABLE
    flags = {"streams": "8", "resident": "0", "context": "4096", "parked_mb": "0"}
    flags |= {"kv_type": "f16", "kv_windows": "all"}
    fixed = engine_config(load({**home, **flags}, {}))
    assert fixed.adjustable == frozenset()
    assert (fixed.parallel, fixed.resident, fixed.context, fixed.parked_bytes_max) == (8, 0, 4096, 0)


def test_a_default_embedder_and_a_reranker_are_counted_beside_the_model(tmp_path: Path) -> None:
    both = {"home": str(tmp_path), "embedder": str(CHAT_MODEL), "reranker": str(CHAT_MODEL)}
    assert engine_config(load(both, {})).beside_bytes == 2 * CHAT_MODEL.stat().st_size


def test_a_worker_that_cannot_fit_its_model_refuses_in_a_sentence(tmp_path: Path) -> None:
    line = complaint("serve", "--home", str(tmp_path), "--port", "0", "--memory-mb", "18", "--streams", "2")
    assert "demo-chat-q8_0.gguf with 2 streams of 2048 tokens in q8_0 needs" in line
    assert "18.0 MB may be used (--memory-mb)" in line
    assert "lower --context, --streams" in line and "raise --memory-mb" in line


@pytest.mark.parametrize(("command", "told"), [("serve", "besides its model"), ("engine", "needs")])
def test_a_process_whose_addresses_are_limited_refuses_in_a_sentence_and_does_not_abort(
    command: str, told: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker", command, "--home", str(tmp_path)],
        cwd=ROOT,
        env=clean_environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert told in done.stderr and "free below its limit of addresses (ulimit -v)" in done.stderr
    assert "raise th" in done.stderr and "--memory-mb" not in done.stderr


async def test_a_worker_with_little_memory_serves_less_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_model(load({"home": str(tmp_path), "memory_mb": "24"}, {}), Supervisor()) as model:
        said, slots = capsys.readouterr().out, model._engine._scheduler.slots.count
        prompt = model.encode(model.render([ChatMessage("user", "Hello!")]))
        answer = [delta async for delta in model.generate(prompt, Sampling(temperature=0, max_tokens=8))]
    assert said.count("\n") == 1 and said.startswith("There is memory for 1 stream of 2048 tokens")
    assert "8 streams and 8 resident slots of 2048 tokens in f16 would take" in said
    assert answer and slots == 1


async def test_a_worker_with_enough_memory_says_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_model(load({"home": str(tmp_path), "memory_mb": "1000"}, {}), Supervisor()):
        assert capsys.readouterr().out == ""


def test_info_foretells_what_serve_will_do(tmp_path: Path) -> None:
    info = ("models", "info", "--home", str(tmp_path), "--json")
    served = json.loads(firsttoken(*info, str(CHAT_MODEL), "--memory-mb", "24").stdout)["memory"]["served"]
    assert (served["parallel"], served["context"]) == (1, 2048)
    preset = json.loads(firsttoken(*info, "qwen3-8b", "--memory-mb", "9000").stdout)["memory"]["served"]
    assert (preset["parallel"], preset["resident"], preset["context"]) == (5, 0, 4096)  # before anything is pulled
    refused = firsttoken("models", "info", "qwen3-8b", "--home", str(tmp_path), "--memory-mb", "900")
    assert refused.returncode == 0 and "Qwen3-8B-Q4_K_M.gguf with 1 stream of 4096 tokens" in refused.stdout
