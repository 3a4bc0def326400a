"""Aliases of models: a request that names an alias reaches the model behind it.

Some programs have the model names of other providers built in, or in settings that cannot be changed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

ALIASES_MAX = 64  # all of them are in every list of models
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


@dataclass(frozen=True, slots=True)
class ModelAliases:
    """`by_name` maps to names of models, including those of agents."""

    by_name: dict[str, str] = field(default_factory=dict)

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

    def replace(self, other: ModelAliases) -> None:
        """Replace all aliases."""
        self.by_name.clear()
        self.by_name.update(other.by_name)

    def model_of(self, name: str) -> str:
        """The model that this name refers to."""
        return self.by_name.get(name, name)

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
