"""The names by which requests reach a model: aliases, what its file and the catalogue call it, and other capitals.

Some programs have the model names of other providers built in, or in settings that cannot be changed here. And people
name a model as they downloaded it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

ALIASES_MAX = 64  # all of them are in every list of models
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


@dataclass(frozen=True, slots=True)
class ModelAliases:
    """`by_name` maps to names of models, including those of agents. `of_files` has the names that come from the file of
    each model, and `loose` maps all names in small letters, where only one model is meant: see `completed`."""

    by_name: dict[str, str] = field(default_factory=dict)
    of_files: dict[str, Collection[str]] = field(default_factory=dict)
    loose: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> ModelAliases:
        """Parse `gpt-4o=demo-chat,helper=agent/support`. Raises ValueError with the mistake as its message."""
        found: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, model = (piece.strip() for piece in part.partition("="))
            if not equals or not NAME.fullmatch(name) or not model:
                raise ValueError(f"must look like gpt-4o=demo-chat, not {part!r}")
            if name in found:
                raise ValueError(f"names {name} twice")
            found[name] = model
        if len(found) > ALIASES_MAX:
            raise ValueError(f"may name at most {ALIASES_MAX} models")
        return cls(found)

    def beside(self, others: Mapping[str, str]) -> ModelAliases:
        """These aliases and those of a file; where both define a name, this one wins."""
        return ModelAliases({**others, **self.by_name})

    def completed(self, served: Iterable[str], of_files: Mapping[str, Collection[str]]) -> ModelAliases:
        """These aliases of what is `served`, and the names that come from the models' files. Names that were given come
        before those."""
        given = [*((name, name) for name in served), *self.by_name.items()]
        taken = {name.casefold() for name, _ in given}
        further = [(name, model) for model, names in of_files.items() for name in names if name.casefold() not in taken]
        return ModelAliases(self.by_name, dict(of_files), _unambiguous([*given, *further]))

    def replace(self, other: ModelAliases) -> None:
        """Replace all names."""
        for ours, theirs in ((self.by_name, other.by_name), (self.loose, other.loose)):
            ours.clear()
            ours.update(theirs)
        self.of_files.clear()
        self.of_files.update(other.of_files)

    def model_of(self, name: str) -> str:
        """The model that this name refers to."""
        return self.by_name.get(name) or self.loose.get(name.casefold(), name)

    def besides(self, model: str) -> list[str]:
        """All names of this model but its own."""
        return list(dict.fromkeys([*self.of([model]), *self.of_files.get(model, ())]))

    def of(self, models: Collection[str]) -> list[str]:
        """The aliases of these models."""
        return [name for name, model in self.by_name.items() if model in models]

    def problems(self, served: Collection[str]) -> list[str]:
        """One message for each alias that refers to no model, or hides one. `served` are all models of a worker."""
        said = "The alias {} (--alias or models.toml) {}.".format
        hidden = [said(name, "is the name of a model itself") for name in self.by_name if name in served]
        available = ", ".join(served)
        return hidden + [
            said(name, f"stands for '{model}', which this worker does not serve. Available: {available}")
            for name, model in self.by_name.items()
            if model not in served
        ]


def _unambiguous(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The model of each name in small letters, unless it is that of several."""
    found: dict[str, set[str]] = {}
    for name, model in pairs:
        found.setdefault(name.casefold(), set()).add(model)
    return {name: models.pop() for name, models in found.items() if len(models) == 1}
