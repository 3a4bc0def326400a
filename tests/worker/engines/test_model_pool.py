"""Who gives way to a model that needs memory, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from inference.provisioning.fit import Allowance, here
from worker.config import load
from worker.engines.engine_config import engine_config
from worker.engines.model_pool import Loaded, ModelPool, is_much_less, leaving, taken
from worker.engines.on_demand import OnDemandModel


@dataclass
class Model:
    """As much of a model as the choice looks at."""

    name: str
    used_at: float
    is_idle: bool = True
    file: str = "chat.gguf"


def loaded(*models: Model) -> list[Loaded]:
    return [Loaded(cast(OnDemandModel, model), 10, (Path(model.file), 100, 0, 0)) for model in models]


def test_of_those_that_are_idle_the_one_that_was_not_used_for_longest_leaves() -> None:
    all_three = loaded(Model("new", 3.0), Model("old", 1.0), Model("oldest", 0.5, is_idle=False))
    gives_way = leaving(all_three)
    assert gives_way is not None and gives_way.model.name == "old"


def test_nobody_leaves_who_is_waited_for() -> None:
    assert leaving(loaded(Model("busy", 1.0, is_idle=False))) is None
    assert leaving([]) is None


def test_the_weights_of_a_file_are_counted_once() -> None:
    base, adapted = Model("base", 1.0), Model("adapted", 2.0)
    assert taken(loaded(base, adapted)) == 120
    assert taken(loaded(adapted)) == 110
    assert taken(loaded(base, Model("other", 3.0, file="other.gguf"))) == 220


@pytest.mark.parametrize(
    ("change", "rather_go"),
    [({}, False), ({"resident": 0}, False), ({"context": 1024}, True), ({"parallel": 1}, True)],
)
def test_another_model_rather_goes_than_that_one_loses_context_or_streams(
    tmp_path: Path, change: dict[str, Any], rather_go: bool
) -> None:
    allowance: Allowance = here(engine_config(load({"home": str(tmp_path), "memory_mb": "1000"}, {})))
    assert is_much_less(replace(allowance, config=replace(allowance.config, **change))) is rather_go


def test_a_pool_says_what_it_holds(tmp_path: Path) -> None:
    assert repr(ModelPool(load({"home": str(tmp_path)}, {}), {}, print)) == "<ModelPool 0 of 0 loaded: none>"
