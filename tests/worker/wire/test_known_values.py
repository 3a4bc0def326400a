"""Options take every value for which the official clients have a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import ValidationError
from typing_extensions import is_typeddict

from worker.wire.messages_request import MessagesRequest
from worker.wire.response_request import ResponseRequest

RESPONSE: dict[str, Any] = {"input": "x"}
MESSAGE: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
# What an option needs beside it.
BESIDE: Mapping[str, dict[str, Any]] = {"thinking": {"type": "adaptive"}, "background_options": {}}
REFUSED = {"image.context_compression", "thread.type", "tool_choice.type"}  # as wholes; one type needs a name beside it


def _among(hint: Any) -> Iterator[Any]:
    """The members of a union."""
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _among(each)
    else:
        yield hint


def named(params: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """Each option that has named values, in the object `within` or outside of it, with each of its values."""
    for name, hint in get_type_hints(params).items():
        members = list(_among(hint))
        literals = [value for each in members if get_origin(each) is Literal for value in get_args(each)]
        yield from ((f"{within}{name}", value) for value in literals)
        if not within and not literals:
            for each in members:
                if is_typeddict(each):
                    yield from named(each, f"{name}.")


@pytest.mark.parametrize(
    ("params", "model", "body"),
    [
        (ResponseCreateParamsNonStreaming, ResponseRequest, RESPONSE | {"background": True}),
        (MessageCreateParamsNonStreaming, MessagesRequest, MESSAGE),
    ],
)
def test_every_value_that_has_a_name_is_taken(params: Any, model: Any, body: dict[str, Any]) -> None:
    options, refused = dict.fromkeys(named(params)), set()
    assert ("thinking.display", "updates") in options or ("reasoning.effort", "max") in options
    for path, value in options:
        outer, _, inner = path.rpartition(".")
        given = {**body, outer: {**BESIDE.get(outer, {}), inner: value}} if outer else {**body, inner: value}
        try:
            model.model_validate(given)
        except ValidationError:
            refused.add(path)
    assert refused - REFUSED == set()
