"""A training that can go on: weights, the state of the optimizers, and how far it got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.bundle import Bundle, bundled_vocabulary
from training.model import Model
from training.shape import Shape
from training.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Without `adam` and `momenta` only the weights are known: enough to start from, not to resume."""

    shape: Shape
    weights: Mapping[str, Tensor]
    vocabulary: Vocabulary
    adam: Mapping[str, Any] | None = None
    momenta: Mapping[tuple[int, ...], Tensor] | None = None
    step: int = 0
    seen: int = 0  # tokens
    spent_s: float = 0.0

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """A checkpoint, or a GGUF file to start from. Raises ValueError, OSError."""
        if path.suffix == ".gguf":
            bundle = Bundle.read(path)
            weights = {name: torch.from_numpy(weight.copy()) for name, weight in bundle.weights.items()}
            return cls(bundle.shape, weights, bundle.vocabulary)
        held = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(held, dict) or not {"config", "model"} <= held.keys():
            raise ValueError(f"{path} is no checkpoint of a training")
        tokenizer = held.get("tokenizer")  # older ones were all made with the bundled model's
        return cls(
            shape=Shape(**held["config"]),
            weights={name: weight.float() for name, weight in held["model"].items()},
            vocabulary=Vocabulary.of(Tokenizer.from_str(tokenizer)) if tokenizer else bundled_vocabulary(),
            adam=held.get("adam"),
            momenta=held.get("mom"),
            step=held.get("step", 0),
            seen=held.get("seen", 0),
            spent_s=held.get("spent", 0.0),
        )

    def save(self, path: Path) -> None:
        """Whoever reads `path` meanwhile sees the old file."""
        partial = path.with_name(path.name + ".partial")
        held = {
            "config": asdict(self.shape),
            "model": dict(self.weights),
            "tokenizer": self.vocabulary.tokenizer().to_str(),
            "adam": self.adam,
            "mom": self.momenta,
            "step": self.step,
            "seen": self.seen,
            "spent": self.spent_s,
        }
        torch.save(held, partial)
        partial.replace(path)

    def averaged(self, other: Checkpoint, share: float) -> Checkpoint:
        """Weights between both, with `share` of these. Raises ValueError for models that do not fit together.

        Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models".
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share} is none: it is from 0 to 1")
        if (self.shape, self.vocabulary) != (other.shape, other.vocabulary):
            raise ValueError("models of different shapes or vocabularies have no average")
        weights = {name: other.weights[name].lerp(weight, share) for name, weight in self.weights.items()}
        return Checkpoint(self.shape, weights, self.vocabulary, step=self.step, seen=self.seen)

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.weights.values())

    def model(self) -> Model:
        model = Model(self.shape)
        model.load_state_dict(dict(self.weights))
        return model

    def bundle(self, title: str, template: str) -> Bundle:
        weights = {name: weight.numpy() for name, weight in self.weights.items()}
        return Bundle(title, self.shape, weights, self.vocabulary, template)
