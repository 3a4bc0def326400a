"""The bodies of POST /tokenize and /detokenize, in the formats of llama-server and vLLM."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from worker.wire import limits
from worker.wire.chat_messages import ChatMessage
from worker.wire.chat_request import ChatRequest
from worker.wire.chat_tools import ChatTool
from worker.wire.completion_request import TokenIds
from worker.wire.strict import Strict, Text, only, up_to
from worker.wire.tools import distinct

Model = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TokenizeRequest(Strict):
    """`content` is llama-server's name for the text and adds no special tokens. `prompt` is vLLM's name and adds the
    special tokens that the model expects at both ends; vLLM also takes `messages`."""

    model: Model | None = None
    content: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], up_to(limits.ITEMS_MAX, least=1)] | None = None
    tools: Annotated[list[ChatTool], up_to(limits.TOOLS_MAX), AfterValidator(distinct)] | None = None

    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: Annotated[bool | None, only(None, True)] = None
    continue_final_message: Annotated[bool | None, only(None, False)] = None

    @model_validator(mode="after")
    def _has_one_text(self) -> TokenizeRequest:
        if sum(each is not None for each in (self.content, self.prompt, self.messages)) != 1:
            raise ValueError("send one of content, prompt and messages")
        return self

    @property
    def text(self) -> str:
        return self.content if self.content is not None else self.prompt or ""

    @property
    def adds_special(self) -> bool:
        asked = self.add_special if self.add_special is not None else self.add_special_tokens
        return self.prompt is not None if asked is None else asked

    @property
    def chat(self) -> ChatRequest | None:
        return ChatRequest(messages=self.messages, tools=self.tools) if self.messages else None


class DetokenizeRequest(Strict):
    model: Model | None = None
    tokens: TokenIds | Annotated[list[int], Field(max_length=0)]
