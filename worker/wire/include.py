"""What callers may ask to be told besides: the values of `include`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from worker.wire.strict import only

RESULTS = "file_search_call.results"
LOGPROBS = "message.output_text.logprobs"
# Events of our own. They are told only where they are asked for: strict readers of the contract refuse what it does not
# name, although it allows such events.
SOURCES = "firsttoken:sources"
TRACE = "firsttoken:trace"
# Known values that ask for parts of items which this server never makes: nothing to include, nothing to refuse.
WITHOUT_EFFECT = frozenset(
    {
        "reasoning.encrypted_content",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)

Include: TypeAlias = Annotated[
    list[Annotated[str, only(RESULTS, LOGPROBS, SOURCES, TRACE, *sorted(WITHOUT_EFFECT))]], Field(max_length=16)
]
