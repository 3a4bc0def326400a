"""The request and response bodies of POST /v1/responses/compact."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints

from agents.events import Usage
from agents.message import Item
from agents.payload import to_payload
from worker.wire import limits
from worker.wire.items import InputItem, as_items
from worker.wire.options import CacheRetention, ServiceTier
from worker.wire.prompt_cache import PromptCacheOptions
from worker.wire.response import usage_object
from worker.wire.response_request import ResponseRequest, ShortKey
from worker.wire.strict import Id, Strict, Text, Unsupported, up_to


class CompactRequest(Strict):
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    input: Annotated[list[InputItem], up_to(limits.ITEMS_MAX), BeforeValidator(as_items)] | None = None
    instructions: Text | None = None
    previous_response_id: Id | None = None
    prompt_cache_key: ShortKey | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None
    image: Unsupported = None

    @property
    def request(self) -> ResponseRequest:
        """The request whose conversation should be compacted."""
        return ResponseRequest.model_construct(
            model=self.model,
            input=self.input or [],
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            service_tier=self.service_tier,
            store=False,
        )


def compaction_object(id: str, output: Sequence[Item], usage: Usage) -> dict[str, Any]:
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [to_payload(item) for item in output],
        "usage": usage_object(usage),
    }
