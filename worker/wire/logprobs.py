"""How likely the tokens of an answer were, as the public contract spells it; alike on both surfaces."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

TOP_MAX = 20  # as in the public contract
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=TOP_MAX)]
