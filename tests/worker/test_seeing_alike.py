"""Our worker and llama-server say the same of the same pictures, greedily, with the same two files.

The first run compiles llama-server.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from benchmarks.engine.servers import compiled_llama_server
from inference.bundled import CHAT_MODEL
from inference.picture import Picture
from tests.deploy.balancers import free_port
from tests.inference.adapters import write_merged
from tests.inference.projectors import KINDS, Kind, picture, png, write_projector, write_with_marks
from tests.serving import Worker

SIZES = (128, 128), (300, 200), (64, 500), (33, 21)
SHOWN: list[tuple[Picture, ...]] = [
    *((picture(at, *size),) for at, size in enumerate(SIZES)),
    (picture(5), picture(6, 300, 200)),
]
QUESTIONS = ["What is this?", "Is it red?"]


def asking(question: str, shown: tuple[Picture, ...]) -> dict[str, Any]:
    urls = [f"data:image/png;base64,{base64.b64encode(png(each)).decode()}" for each in shown]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0}


def said(url: str, body: dict[str, Any], key: str = "") -> tuple[str, int]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)) as answer:
        told = json.load(answer)
    return told["choices"][0]["message"]["content"].strip(), told["usage"]["prompt_tokens"]


@contextmanager
def peer(*files: str) -> Iterator[str]:
    """The address of llama-server."""
    port = free_port()
    options = ["--port", str(port), "--threads", "1", "--ctx-size", "2048", "--flash-attn", "off", "--jinja"]
    command = [str(compiled_llama_server()), *files, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("listening on" in line for line in process.stderr), "llama-server ended"
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.any_answer("both read the same weights, of 32 bits")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_pictures_get_the_same_answers_as_from_llama_server(make_home: Callable[[], Path], kind: Kind) -> None:
    home = make_home()
    model = write_merged(write_with_marks(CHAT_MODEL, home / "marked.gguf"), home / "model.gguf", {})
    files = ["--model", str(model), "--mmproj", str(write_projector(home / "mmproj.gguf", kind, 384))]
    worker = Worker(home, "--docs", "", *files)
    try:
        ready = worker.wait_until_ready()
        with peer(*files) as other:
            for question, shown in product(QUESTIONS, SHOWN):
                body = asking(question, shown)
                assert said(ready["url"], body, ready["api_key"]) == said(other, {**body, "cache_prompt": False})
    finally:
        worker.stop()
