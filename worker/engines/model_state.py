"""What a worker reports of its models: which of them are loaded, and how long their loads took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from inference.trace import Trace

State: TypeAlias = Literal["loaded", "loading", "not_loaded"]


class ModelStates(Protocol):
    """The states of all models by name; implemented by `engines.at_work`."""

    @property
    def states(self) -> Mapping[str, State]: ...

    @property
    def loading(self) -> float | None:
        """The progress of the models that are loading, from 0 to 1; None while none is."""
        ...

    @property
    def starts(self) -> Mapping[str, Trace]:
        """The newest load of each, by its phases."""
        ...
