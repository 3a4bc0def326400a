"""The sampling parameters of a model file: what applies where a request leaves them open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import isfinite
from typing import NamedTuple, Self

from inference.frozen import dataclass

SAMPLING_PREFIX = "general.sampling."  # as llama.cpp's converter writes what a publisher recommends into the file
# Of llama-server, parameter by parameter. Small models draw noise at temperature 1 from the whole vocabulary.
SAMPLING_DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


class _SamplingKey(NamedTuple):
    name: str  # in `Sampling`
    least: float
    most: float  # as of a request


SAMPLING_KEYS: Mapping[str, _SamplingKey] = {
    "temp": _SamplingKey("temperature", 0.0, 2.0),
    "top_k": _SamplingKey("top_k", 0, 1_000_000),
    "top_p": _SamplingKey("top_p", 0.0, 1.0),
    "min_p": _SamplingKey("min_p", 0.0, 1.0),
    "penalty_repeat": _SamplingKey("repeat_penalty", 0.01, 2.0),
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the model's publisher recommends, and llama.cpp's own defaults for the rest.

    `stated` in the file, by their names in `Sampling`; `others` are keys of the file that have no effect here:
    samplers that this engine does not have, and values that no request could set."""

    stated: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, float]:
        """All that apply."""
        return {**SAMPLING_DEFAULTS, **self.stated}

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> Self:
        given = {
            key.removeprefix(SAMPLING_PREFIX): text for key, text in metadata.items() if key.startswith(SAMPLING_PREFIX)
        }
        values: dict[str, float] = {}
        others: dict[str, str] = {}
        for key in [*SAMPLING_KEYS, *sorted(given.keys() - SAMPLING_KEYS.keys())]:  # a file has them in any order
            if (text := given.get(key)) is None:
                continue
            parameter, number = SAMPLING_KEYS.get(key), _number(text)
            if parameter is not None and number is not None and parameter.least <= number <= parameter.most:
                values[parameter.name] = int(number) if parameter.name == "top_k" else number
            elif number != 0:  # these samplers are off at 0
                others[key] = text
        return cls(values, others)

    def __str__(self) -> str:
        default = [f"{name} {value:g}" for name, value in SAMPLING_DEFAULTS.items() if name not in self.stated]
        told = [f"{name} {value:g}" for name, value in self.stated.items()]
        told += [f"by default {', '.join(default)}"] if default else []
        return "; ".join([", ".join(told), *(f"{key} {text} has no effect" for key, text in self.others.items())])


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
