"""A worker that serves the same real weights as six models, and the official clients.

What such a small model says is no test's concern, so its draws are not noted: see tests/margins.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from deploy.commands import SetupFailed
from deploy.weights import weights
from inference.llama.weights import quantize
from tests.real_weights.behaviours import MODELS, OWN, TEMPLATES, write_with_template
from tests.serving import Worker

CONTEXT = 1024  # tokens: the keys and values of one take 46 KB, in two slots of each of six models
NARROW, NARROW_CONTEXT = "strict", 512  # of this model, so that a test can fill it


@pytest.fixture(scope="session")
def real_weights(make_empty_home: Callable[[], Path]) -> Path:
    """The published weights in a type for which llama.cpp has a fast product on any CPU: prompts are read in half the
    time. Coarser types are faster still, but with them the model no longer knows the capital of France."""
    file = make_empty_home() / f"{OWN}.gguf"
    try:
        quantize(weights(), file, "q8_0", threads=1)
    except SetupFailed as error:
        pytest.fail(str(error), pytrace=False)
    return file


@pytest.fixture(scope="session")
def real_worker(make_home: Callable[[], Path], real_weights: Path) -> Iterator[Worker]:
    home = make_home()
    files = {OWN: real_weights, **{name: home / f"{name}.gguf" for name in TEMPLATES}}
    for name, template in TEMPLATES.items():
        write_with_template(files[OWN], files[name], template)
    tables = {name: f'[models.{name}]\nmodel = "{files[name]}"\n' for name in MODELS}
    tables[NARROW] += f"context = {NARROW_CONTEXT}\n"
    (home / "models.toml").write_text("".join(tables.values()))
    small = {"context": CONTEXT, "streams": 1, "resident": 1, "parked-mb": 0, "kv-disk-mb": 0, "docs": ""}
    # Without a target nothing is late: else a slow machine gives fewer passages to an answer.
    options = [f"--{name}={value}" for name, value in {**small, "targets": ""}.items()]
    worker = Worker(home, *options, program="tests.patient_worker")
    worker.wait_until_ready()
    yield worker
    assert worker.stop() == 0


@pytest.fixture(scope="session")
def real_server(real_worker: Worker) -> dict[str, Any]:
    return real_worker.wait_until_ready()


@pytest.fixture(scope="session")
def client(real_server: dict[str, Any]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{real_server['url']}/v1", api_key=real_server["api_key"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def anthropic(real_server: dict[str, Any]) -> Iterator[Anthropic]:
    with Anthropic(base_url=real_server["url"], api_key=real_server["api_key"], max_retries=0) as client:
        yield client
