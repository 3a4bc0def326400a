"""What a turn costs, in units that the operator chooses: cents, credits, or a share of a machine's day."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from agents.events import Usage

TOOLS_MAX = 256
Price: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


class Prices(BaseModel):
    """Nothing costs anything until it has a price. Tokens are priced by the thousand."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input: Price = 0.0  # tokens of a prompt that are computed
    cached: Price = 0.0  # tokens of a prompt that the cache has
    output: Price = 0.0  # tokens that are generated
    tools: Annotated[dict[str, Price], Field(max_length=TOOLS_MAX)] = Field(default_factory=dict)  # one call

    def of_step(self, usage: Usage) -> float:
        computed = usage.input_tokens - usage.cached_tokens
        thousands = computed * self.input + usage.cached_tokens * self.cached + usage.output_tokens * self.output
        return thousands / 1000

    def of_call(self, tool: str) -> float:
        return self.tools.get(tool, 0.0)


FREE = Prices()
