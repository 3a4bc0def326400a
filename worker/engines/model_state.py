"""What a worker tells of its models: which of them are loaded, and what their loads took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from inference.trace import Trace

State: TypeAlias = Literal["loaded", "loading", "not_loaded"]


class ModelStates(Protocol):
    """Of all models by name; `engines.at_work` is the real one."""

    @property
    def states(self) -> Mapping[str, State]: ...

    @property
    def loading(self) -> float | None:
        """How far those are that are being loaded, from 0 to 1; None while none is."""
        ...

    @property
    def starts(self) -> Mapping[str, Trace]:
        """The newest load of each, by its phases."""
        ...
