"""models.toml of a crew: which engines are begun, and what its workers read."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from worker.config import load
from worker.engines.model_file import read_models
from worker.errors import StartError
from worker.lifecycle.crew import crew
from worker.lifecycle.crew.crew import SharedModels

TWO = """
default = "auto"

[models.small]
model = "demo-draft"
streams = 2
price = { engine_second = 0.2 }

[models.large]
model = "demo-chat"
load = "use"

[aliases]
"gpt-4o.mini" = "small"

[routes.auto]
policy = "cascade"
first = "small"
then = "large"
doubt = { refusals = ["I \\"can't\\" \\u00e9"] }
"""

HARD = r"""
[models.odd]
model = "a \"b\" 'c'\n\t\u007f\\ é"
switches = { "thinking budget" = 5, "é\"" = "x\ny", quick = true }

[[routes.by-rule.rules]]
model = ["small", "odd"]
when = { languages = ["de", "fr"], question_chars_max = 80 }

[[routes.by-rule.rules]]
model = "large"
when = { tools = false }

[routes.by-rule]
policy = "rules"
otherwise = "large"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "crew"
    folder.mkdir()
    return folder


def shared(home: Path, folder: Path, text: str | None = TWO, **flags: str) -> SharedModels:
    if text is not None:
        (home / "models.toml").write_text(text)
    return SharedModels.of(load({"home": str(home), **flags}, {}), folder)


def test_each_model_gets_an_engine_with_the_settings_of_its_table(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder)
    begun = models.read()
    assert [(each.model, dict(each.flags)) for each in begun] == [
        ("small", {"model": "demo-draft", "streams": "2"}),
        ("large", {"model": "demo-chat"}),
    ]
    assert [each.process for each in begun] == ["engine-1-small", "engine-2-large"]
    assert models.take(begun) == []
    told = read_models(load({"home": str(tmp_path), "models": str(models.path)}, {}))
    meant = read_models(load({"home": str(tmp_path)}, {}))
    assert told is not None and meant is not None
    assert {name: table.engines for name, table in told.models.items()} == {e.model: e.address for e in begun}
    assert (told.routes, told.aliases, told.default) == (meant.routes, meant.aliases, "auto")
    assert told.models["small"].price == meant.models["small"].price


def test_only_what_is_another_engine_is_begun_again(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder)
    first = list(models.read())
    models.take(first)
    assert models.read() == []
    (tmp_path / "models.toml").write_text(TWO.replace("0.2", "0.3").replace("demo-chat", "demo-draft"))
    changed = list(models.read())
    assert [each.model for each in changed] == ["large"]
    assert changed[0].process not in {each.process for each in first}
    assert models.take(changed) == [first[1]]


def test_a_file_that_cannot_be_written_changes_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = shared(tmp_path, folder)
    first = list(models.read())
    models.take(first)
    (tmp_path / "models.toml").write_text(TWO.replace("demo-chat", "demo-draft"))
    changed = list(models.read())

    def full(path: Path, content: bytes) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="full"):
        broken.setattr(crew, "write_atomically", full)
        models.take(changed)
    assert [each.process for each in models.engines.values()] == [each.process for each in first]
    assert [each.model for each in models.read()] == ["large"]


def test_a_file_that_is_gone_is_said_to_be(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder)
    models.take(list(models.read()))
    (tmp_path / "models.toml").unlink()
    with pytest.raises(StartError, match="come or gone"):
        models.read()


def test_engines_that_the_operator_names_are_left_to_the_operator(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder, TWO.replace('load = "use"', 'engines = "http://127.0.0.1:9"'))
    begun = list(models.read())
    models.take(begun)
    assert [each.model for each in begun] == ["small"]
    assert "http://127.0.0.1:9" in models.path.read_text()


def test_without_a_file_there_is_one_engine_begun_again_if_its_model_is_another(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "models" / "chat.gguf"
    file.parent.mkdir()
    shutil.copyfile(DRAFT_MODEL, file)
    models = shared(tmp_path, folder, None, model="chat.gguf")
    (first,) = models.read()
    models.take([first])
    assert (first.process, models.of_workers) == ("engine", {"engines": first.address})
    assert models.read() == []
    shutil.copyfile(CHAT_MODEL, file)
    (second,) = models.read()
    assert models.of_workers == {"engines": first.address}
    assert models.take([second]) == [first]
    assert (second.process, models.of_workers) == ("engine-2", {"engines": second.address})


def test_engines_elsewhere_are_those_of_all_workers(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder, None, engines="http://127.0.0.1:9")
    assert models.read() == []
    assert models.of_workers == {"engines": "http://127.0.0.1:9"}


def test_a_mistake_is_one_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StartError, match=r"models\.toml.*models\.small\.model"):
        shared(tmp_path, folder, "[models.small]\nmodel = 5\n")


def test_only_a_file_that_was_replaced_begins_its_engine_again(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "models" / "small.gguf"
    file.parent.mkdir()
    shutil.copyfile(DRAFT_MODEL, file)
    models = shared(tmp_path, folder, TWO.replace("demo-draft", "small.gguf"))
    models.take(list(models.read()))
    assert models.read() == []
    shutil.copyfile(CHAT_MODEL, file)
    assert [each.model for each in models.read()] == ["small"]


def test_workers_read_what_the_operator_wrote_whatever_is_in_it(tmp_path: Path, folder: Path) -> None:
    odd = tmp_path / "models" / tomllib.loads(HARD)["models"]["odd"]["model"]
    odd.parent.mkdir()
    odd.symlink_to(DRAFT_MODEL)
    models = shared(tmp_path, folder, TWO + HARD)
    begun = models.read() or ()
    models.take(begun)
    written, told = (tomllib.loads(path.read_text()) for path in (tmp_path / "models.toml", models.path))
    for engine in begun:
        assert told["models"][engine.model].pop("engines") == engine.address
    assert told == written
