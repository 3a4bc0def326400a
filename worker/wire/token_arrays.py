"""Text inputs of a request: one or several, each a text or an array of its token ids."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field

Token: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


def form(value: Any) -> str:
    """text, texts, ids or arrays, determined by the first entry."""
    if not isinstance(value, list):
        return "text"
    first = next(islice(value, 1), "")
    return "ids" if isinstance(first, int) else "arrays" if isinstance(first, list) else "texts"


def together(tokens_max: int) -> AfterValidator:
    """Of several arrays with at most this many tokens in total."""

    def check(arrays: list[list[int]]) -> list[list[int]]:
        if sum(map(len, arrays)) > tokens_max:
            raise ValueError(f"all token arrays together may have at most {tokens_max} tokens")
        return arrays

    return AfterValidator(check)
