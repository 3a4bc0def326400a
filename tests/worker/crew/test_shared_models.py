"""models.toml of a crew: which engines are begun, and what its workers read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.config import load
from worker.crew import shared_models
from worker.crew.shared_models import SharedModels, toml
from worker.engines.model_file import read_models
from worker.errors import StartError

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "crew"
    folder.mkdir()
    return folder


def shared(home: Path, folder: Path, text: str | None = TWO) -> SharedModels | None:
    if text is not None:
        (home / "models.toml").write_text(text)
    return SharedModels.of(load({"home": str(home)}, {}), folder)


def test_each_model_gets_an_engine_with_the_settings_of_its_table(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder)
    assert models is not None
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
    assert models is not None
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
    assert models is not None
    first = list(models.read())
    models.take(first)
    (tmp_path / "models.toml").write_text(TWO.replace("demo-chat", "demo-draft"))
    changed = list(models.read())

    def full(path: Path, content: bytes) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="full"):
        broken.setattr(shared_models, "write_atomically", full)
        models.take(changed)
    assert [each.process for each in models.engines.values()] == [each.process for each in first]
    assert [each.model for each in models.read()] == ["large"]


def test_a_file_that_is_gone_is_said_to_be(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder)
    assert models is not None
    models.take(list(models.read()))
    (tmp_path / "models.toml").unlink()
    with pytest.raises(StartError, match="is gone"):
        models.read()


def test_engines_that_the_operator_names_are_left_to_the_operator(tmp_path: Path, folder: Path) -> None:
    models = shared(tmp_path, folder, TWO.replace('load = "use"', 'engines = "http://127.0.0.1:9"'))
    assert models is not None
    begun = list(models.read())
    models.take(begun)
    assert [each.model for each in begun] == ["small"]
    assert "http://127.0.0.1:9" in models.path.read_text()


def test_without_a_file_there_is_one_model_and_a_mistake_is_one_line(tmp_path: Path, folder: Path) -> None:
    assert shared(tmp_path, folder, None) is None
    with pytest.raises(StartError, match=r"models\.toml.*models\.small\.model"):
        shared(tmp_path, folder, "[models.small]\nmodel = 5\n")


values = st.recursive(
    st.booleans() | st.integers(-(2**31), 2**31) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text("ab.é\"' -", min_size=1), each, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from("abc"), values))
def test_what_is_written_is_what_is_read(told: dict[str, object]) -> None:
    assert tomllib.loads("".join(f"{key} = {toml(value)}\n" for key, value in told.items())) == told
