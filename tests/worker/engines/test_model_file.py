"""models.toml: what it may say, and how a mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from agents.routing.policy import Cascade, Steps
from tests.worker.cli.test_main import complaint, firsttoken
from worker.config import Config, load, settings
from worker.engines.model_file import OF_WORKERS, InvalidModels, ModelFile, ModelTable, read_models
from worker.errors import StartError

FILE = """
default = "auto"

[models.small]
model = "demo-draft"
context = 1024
kv_type = "q8_0"
switches = { enable_thinking = false }
price = { engine_second = 0.2 }

[models.large]
load = "use"
draft = "lookup"

[aliases]
fast = "small"
"gpt-4o" = "auto"

[routes.auto]
policy = "cascade"
first = "small"
then = "large"
doubt = { mean_logprob = -0.5 }

[routes.by-step]
policy = "steps"
tools = "small"
answer = "large"
hold = { tokens = 4, ms = 40 }
"""


def written(home: Path, text: str) -> Path:
    path = home / "models.toml"
    path.write_text(text)
    return path


def read(home: Path, text: str) -> ModelFile:
    written(home, text)
    file = read_models(Config(home=home))
    assert file is not None
    return file


def test_a_file_names_models_aliases_and_routes(tmp_path: Path) -> None:
    file = read(tmp_path, FILE)
    assert file.names == ["auto", "small", "large", "by-step"]
    assert isinstance(file.routes["auto"], Cascade) and isinstance(file.routes["by-step"], Steps)
    assert file.aliases == {"fast": "small", "gpt-4o": "auto"}
    assert file.models["small"].price.engine_second == 0.2
    assert [table.load for table in file.models.values()] == ["start", "use"]


def test_what_a_model_does_not_say_is_as_the_settings_say(tmp_path: Path) -> None:
    models = read(tmp_path, FILE).models
    worker = load({"home": str(tmp_path), "streams": "3", "context": "2048", "threads": "1"}, {})
    small, large = models["small"].applied(worker), models["large"].applied(worker)
    assert (str(small.model), small.context, small.kv_type, small.streams) == ("demo-draft", 1024, "q8_0", 3)
    assert (large.model, large.context, large.draft, large.threads) == (None, 2048, Path("lookup"), 1)


def test_what_a_table_says_of_its_engine_is_apart_from_what_workers_do(tmp_path: Path) -> None:
    models = read(tmp_path, FILE).models
    assert models["small"].engine == {"model": "demo-draft", "context": 1024, "kv_type": "q8_0"}
    assert models["large"].engine == {"draft": "lookup"}


def test_a_key_of_an_engine_is_a_setting_of_the_same_kind() -> None:
    kinds = {setting.name: str if setting.kind is Path else setting.kind for setting in settings()}
    hints = get_type_hints(ModelTable)
    of_engines = ModelTable.model_fields.keys() - OF_WORKERS
    assert {name: hints[name] for name in of_engines} == {name: kinds[name] | None for name in of_engines}


def test_no_file_means_one_model(tmp_path: Path) -> None:
    assert read_models(Config(home=tmp_path)) is None
    with pytest.raises(StartError, match=r"there is no file .*other.toml \(--models\)"):
        read_models(Config(home=tmp_path, models=tmp_path / "other.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models.a]\ncontxt = 5", r"models.toml:2: models.a.contxt: there is no such key; did you mean context"),
        ('[models.a]\n\nkv_type = "q2"', r"models.toml:3: models.a.kv_type: must be auto, .* or q4_0, not 'q2'"),
        ("[models.a]\nlora = 'a.gguf,a.gguf'", r"models.toml:2: models.a.lora: names an adapter twice"),
        ("[models.a]\nstreams = 0", r"models.toml:2: models.a.streams: must be between 1 and 128"),
        ("[models.a]\nprice = { engine_second = -1 }", r"models.toml:2: models.a.price.engine_second: "),
        ('[models."a/b"]\n', r"models.toml:1: models.a/b: String should match pattern"),
        ("", r"models.toml: models: is missing"),
        (
            "[models.a]\n[routes.r]\npolicy = 'luck'",
            r"models.toml:2: routes.r: policy must be one of fixed, steps, rules, cascade, not 'luck'",
        ),
        ("[models.a]\n[routes.r]\npolicy = 'cascade'\nfirst = 'a'", r"models.toml:2: routes.r.then: is missing"),
        (
            "[models.a]\n[routes.r]\npolicy = 'cascade'\nfirst = 'a'\nthen = 'a'\nhold = { tokens = 9 }",
            r"models.toml:6: routes.r.hold.tokens: .* less than or equal to 8",
        ),
        (
            "[models.a]\n[routes.r]\npolicy = 'rules'\notherwise = 'a'\nrules = [{ when = { long = 1 }, model = 'a' }]",
            r"models.toml:5: routes.r.rules.0.when.long: there is no such key",
        ),
        ("[models.a]\n[routes.r]\npolicy = 'fixed'\nmodel = 5", r"models.toml:4: routes.r.model: "),
        (
            "[models.a]\n[routes.r]\npolicy = 'fixed'\nmodel = 'b'",
            r"models.toml:4: routes.r.model: there is no model 'b'. Available: a.",
        ),
        ("[models.a]\n[routes.r]\npolicy = 'fixed'\nmodel = ['a', 'b']", r"models.toml:4: routes.r.model: .*'b'"),
        (
            "[models.a]\n[routes.r]\npolicy = 'cascade'\nfirst = 'a'\nthen = 'b'",
            r"models.toml:5: routes.r.then: there is no model 'b'",
        ),
        (
            "[models.a]\n[routes.r]\npolicy = 'rules'\notherwise = 'a'\nrules = [{ model = 'b', when = {} }]",
            r"models.toml:2: routes.r: there is no model 'b'",
        ),
        (
            "[models.a]\n[routes.a]\npolicy = 'fixed'\nmodel = 'a'",
            r"models.toml:2: routes.a: there is a model of this name",
        ),
        (
            "[models.a]\nengines = 'http://a:1'\nmmproj = 'eyes'",
            r"models.toml:3: models.a.mmproj: engines in other processes do not see images",
        ),
        ("default = 'b'\n[models.a]", r"models.toml:1: default: there is no model or route 'b'"),
        ("[models.a]\nengines = 'nowhere'", r"models.toml:2: models.a.engines: "),
        ("[models.a\n", r"models.toml is not valid TOML: "),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_key_and_line(tmp_path: Path, text: str, message: str) -> None:
    written(tmp_path, text)
    with pytest.raises(InvalidModels, match=message) as error:
        read_models(Config(home=tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("flags", [{"model": "demo-chat"}, {"engines": "unix:/run/engine.sock"}])
def test_settings_of_one_model_do_not_go_with_a_file_of_several(tmp_path: Path, flags: dict[str, str]) -> None:
    written(tmp_path, "[models.a]")
    with pytest.raises(StartError, match=r"models\.toml names"):
        read_models(load({"home": str(tmp_path), **flags}, {}))


def test_a_model_behind_engines_is_computed_there(tmp_path: Path) -> None:
    file = read(tmp_path, "[models.a]\nengines = 'unix:/run/a.sock'\n[models.b]")
    assert list(file.elsewhere()) == ["a"]
    assert file.models["a"].applied(Config()).engines == "unix:/run/a.sock"
    assert ModelTable().applied(Config()).engines is None


def test_the_command_lists_models_and_routes_and_refuses_a_wrong_file(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    (tmp_path / "agents.toml").write_text('[agents.support]\nmodel = "auto"\n')
    listed = firsttoken("agents", "--home", str(tmp_path)).stdout
    assert "support            searches" not in listed
    assert "auto (small, then large when it is not sure)" in listed
    assert "model small" in listed and "0.2 per second of its engine" in listed
    assert "route by-step" in listed and "small calls tools, large answers" in listed
    assert "alias gpt-4o" in listed
    (tmp_path / "agents.toml").write_text('[agents.support]\nmodel = "huge"\n')
    assert "it needs the model 'huge'" in complaint("agents", "--home", str(tmp_path))
    path.write_text("[models.a]\nstreams = 0\n")
    assert f"{path}:2: models.a.streams" in complaint("agents", "--home", str(tmp_path))
