"""Several models at work at once, read from models.toml.

[models.small]
model = "demo-draft"
price = { engine_second = 0.2 }

[models.large]
model = "demo-chat"
load = "use"

[aliases]
fast = "small"
best = "large"

[routes.auto]
policy = "cascade"
first = "small"
then = "large"

What a table does not set is as the settings of the worker say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from agents.errors import AgentError
from agents.routing.policy import Policy, named_by, names
from agents.toml_file import Name, Table, line_of, read_toml
from inference.prompt import Value
from worker.config import Config, settings
from worker.engines.model_aliases import ALIASES_MAX, NAME
from worker.errors import StartError
from worker.home import Home

MODELS_MAX = 32  # more than fit into any machine's memory
ROUTES_MAX = 32
SWITCHES_MAX = 16
OF_WORKERS = {"engines", "load", "switches", "price"}  # keys of a model that its engine does not use
FILES = ("model", "mmproj", "draft")

# A name also names a folder of saved states on disk.
ModelName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
OtherName: TypeAlias = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]


Place: TypeAlias = tuple[str, ...]  # of a key, from the top of the file


class InvalidModels(AgentError):
    """models.toml cannot be used; the message says where and why."""


class Price(Table):
    """In the operator's unit, as all prices: see agents.turn."""

    engine_second: Annotated[float, Field(ge=0, le=1e6)] = 1.0


class ModelTable(Table):
    """One configuration of an engine: settings, with what each takes. None: the value of the setting."""

    model: Name | None = None
    lora: str | None = None
    mmproj: Name | None = None
    draft: Name | None = None
    context: int | None = None
    streams: int | None = None
    resident: int | None = None
    kv_type: str | None = None
    kv_windows: str | None = None
    parked_mb: int | None = None
    kv_disk_mb: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    engines: str | None = None  # None: this worker
    load: Literal["start", "use"] = "start"
    switches: Annotated[dict[Name, Value], Field(max_length=SWITCHES_MAX)] = Field(default_factory=dict)
    price: Price = Price()

    @field_validator("*")
    @classmethod
    def _is_what_the_setting_takes(cls, value: Any, info: ValidationInfo) -> Any:
        for setting in settings():
            if setting.name == info.field_name and value is not None:
                setting.takes(value)
        return value

    @property
    def engine(self) -> dict[str, Any]:
        """Its engine settings: two models with the same settings compute the same."""
        return self.model_dump(exclude=OF_WORKERS, exclude_none=True)

    def applied(self, config: Config) -> Config:
        """The worker's settings with those of this model applied."""
        files = {name: Path(file) for name in FILES if (file := self.engine.get(name)) is not None}
        return replace(config, engines=self.engines, **{**self.engine, **files})


class ModelFile(Table):
    models: Annotated[dict[ModelName, ModelTable], Field(min_length=1, max_length=MODELS_MAX)]
    aliases: Annotated[dict[OtherName, Name], Field(max_length=ALIASES_MAX)] = Field(default_factory=dict)
    routes: Annotated[dict[ModelName, Policy], Field(max_length=ROUTES_MAX)] = Field(default_factory=dict)
    default: Name | None = None  # for requests that name no model; None: the first table

    @property
    def names(self) -> list[str]:
        """The names that a request may use, the default first."""
        default = [self.default] if self.default else []
        return list(dict.fromkeys((*default, *self.models, *self.routes)))

    @property
    def is_priced(self) -> bool:
        """Whether its prices count. One is enough: if those without one were free, costs could not be compared."""
        return any("price" in table.model_fields_set for table in self.models.values())

    @property
    def problems(self) -> list[tuple[Place, str]]:
        """Each name that refers to nothing, or to two things, and why."""
        models, known = ", ".join(self.models), {*self.models, *self.routes}
        found: list[tuple[Place, str]] = []
        if self.default not in (None, *known):
            found.append((("default",), f"there is no model or route '{self.default}'."))
        for route, policy in self.routes.items():
            if route in self.models:
                found.append((("routes", route), "there is a model of this name."))
            found += [
                (("routes", route, *_keys_of(policy, name)), f"there is no model '{name}'. Available: {models}.")
                for name in named_by(policy)
                if name not in self.models
            ]
        for name, table in self.models.items():
            if table.engines is not None and table.mmproj is not None:
                found.append((("models", name, "mmproj"), "engines in other processes do not see images."))
        return found

    def elsewhere(self) -> Mapping[str, ModelTable]:
        """Models served by engines in processes of their own."""
        return {name: table for name, table in self.models.items() if table.engines is not None}


def read_models(config: Config) -> ModelFile | None:
    """None without a file: then the worker has one model. Raises StartError, InvalidModels."""
    path = config.models or Home(config.home).models_file
    try:
        file = read_toml(path, ModelFile, InvalidModels)
    except FileNotFoundError:
        if config.models is None:
            return None
        raise StartError(f"there is no file {path} (--models)") from None
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror} (--models)") from error
    if problems := file.problems:
        place, message = problems[0]
        line = line_of(place, path.read_text("utf-8"))
        raise InvalidModels(f"{path}{line}: {'.'.join(place)}: {message}")
    if config.model is not None:
        raise StartError(f"leave out --model: {path} names the models")
    if config.engines is not None:
        instead = "give each its own `engines` there, without --engines"
        raise StartError(f"{path} names several models: {instead}")
    return file


def _keys_of(policy: Policy, name: str) -> Place:
    """The key of a route that names a model, if it is one of its own and not of its rules."""
    own = ((key, names(value)) for key, value in policy if isinstance(value, str | list))
    return next(((key,) for key, named in own if name in named), ())
