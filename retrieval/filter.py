"""Filters that restrict a search to files by their attributes, in the shape of the public contract.

A filter becomes an SQL condition whose keys and values are parameters; none of the caller's text becomes SQL.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

KEY_CHARS_MAX = 64  # the limits that apply when attributes are written
VALUE_CHARS_MAX = 512
VALUES_MAX = 100  # of one "in"
PARTS_MAX = 64  # comparisons in total: each is evaluated for every file of the store
DEPTH_MAX = 8

_Text: TypeAlias = Annotated[str, StringConstraints(max_length=VALUE_CHARS_MAX)]
_Number: TypeAlias = int | Annotated[float, Field(allow_inf_nan=False)]
Scalar: TypeAlias = bool | _Number | _Text
Attributes: TypeAlias = dict[Annotated[str, StringConstraints(min_length=1, max_length=KEY_CHARS_MAX)], Scalar]

# A missing attribute equals nothing and satisfies no ordering; values of two types have no order.
_EQUAL = {"eq": "is not distinct from", "ne": "is distinct from"}
_ORDER = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_MEMBER = {"in": "coalesce({0} = any({1}::jsonb[]), false)", "nin": "not coalesce({0} = any({1}::jsonb[]), false)"}


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Comparison(_Part):
    """Compares an attribute with a value: equality, order (numbers, or strings by code point), or membership."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Annotated[str, StringConstraints(min_length=1, max_length=KEY_CHARS_MAX)]
    value: Scalar | Annotated[list[Scalar], Field(max_length=VALUES_MAX)]

    @model_validator(mode="after")
    def _value_fits(self) -> Comparison:
        if (self.type in _MEMBER) != isinstance(self.value, list):
            raise ValueError("in and nin need a list of values, the other comparisons a single value")
        if self.type in _ORDER and isinstance(self.value, bool):
            raise ValueError("booleans cannot be ordered")
        return self

    @property
    def parts(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 1


class Compound(_Part):
    """All filters match ("and"), or at least one ("or")."""

    type: Literal["and", "or"]
    filters: Annotated[list[Filter], Field(min_length=1, max_length=PARTS_MAX)]

    @model_validator(mode="after")
    def _is_bounded(self) -> Compound:
        if self.depth > DEPTH_MAX or self.parts > PARTS_MAX:
            raise ValueError(
                f"a filter may have at most {PARTS_MAX} comparisons, nested at most {DEPTH_MAX} levels deep"
            )
        return self

    @property
    def parts(self) -> int:
        return sum(part.parts for part in self.filters)

    @property
    def depth(self) -> int:
        return 1 + max(part.depth for part in self.filters)


Filter: TypeAlias = Annotated[Comparison | Compound, Field(discriminator="type")]
Compound.model_rebuild()


def condition(part: Filter, attributes: str, parameters: list[Any]) -> str:
    """The filter as a condition on the jsonb column `attributes`; its values are appended to `parameters`."""
    if isinstance(part, Compound):
        return "(" + f" {part.type} ".join(condition(one, attributes, parameters) for one in part.filters) + ")"
    parameters += [part.key, part.value]
    held, value = f"({attributes} -> ${len(parameters) - 1}::text)", f"${len(parameters)}"
    if part.type in _MEMBER:
        return _MEMBER[part.type].format(held, value)
    if part.type in _EQUAL:
        return f"{held} {_EQUAL[part.type]} {value}::jsonb"
    comparable = f"jsonb_typeof{held} = jsonb_typeof({value}::jsonb)"
    return f"coalesce({comparable} and {held} {_ORDER[part.type]} {value}::jsonb, false)"
