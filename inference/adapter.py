"""LoRA adapters: low-rank changes to the weights of a model, added while it computes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

ADAPTERS_MAX = 8  # of one model: each adds two products to every matrix of every step
SCALE_MAX = 100.0  # an adapter is trained to be added once; far above, only overflow is left of the logits


@dataclass(frozen=True, slots=True)
class Adapter:
    """The change in the GGUF file `path`, times `scale`; 0 leaves the model as it is, below 0 takes the change back."""

    path: Path
    scale: float = 1.0
    file_bytes: int = 0

    def __str__(self) -> str:
        """As `parse` takes it."""
        return f"{self.path}:{self.scale:g}"

    @property
    def card(self) -> dict[str, object]:
        """As lists of models show it; folders are the operator's business."""
        return {"file": self.path.name, "scale": self.scale}

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """FILE or FILE:SCALE. Raises ValueError with the mistake as its message."""
        file, colon, number = text.strip().rpartition(":")
        try:
            scale = float(number) if colon else 1.0
        except ValueError:  # a colon of the path
            file, scale = text.strip(), 1.0
        if not colon:
            file = number
        if not file:
            raise ValueError(f"must look like support.gguf or support.gguf:0.5, not {text!r}")
        if not (isfinite(scale) and abs(scale) <= SCALE_MAX):
            raise ValueError(f"has a scale of {number}: it must be a number between {-SCALE_MAX:g} and {SCALE_MAX:g}")
        return cls(Path(file), scale)


def adapters_in(text: str) -> tuple[Adapter, ...]:
    """Those of a setting, separated by commas. Raises ValueError with the mistake as its message."""
    found = tuple(Adapter.parse(part) for part in text.split(",") if part.strip())
    if len(found) > ADAPTERS_MAX:
        raise ValueError(f"may name at most {ADAPTERS_MAX} adapters")
    if len({adapter.path for adapter in found}) < len(found):
        raise ValueError("names an adapter twice")
    return found
