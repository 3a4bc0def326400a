"""Texts as tokens of a chat model, and back, in the formats of llama-server and vLLM; and how its texts begin and end.

Nothing of it is on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import orjson
from aiohttp import web
from pydantic import AfterValidator, Field, model_validator

from inference.language_model import LanguageModel
from worker.auth.scope import Scope
from worker.http.query import Query
from worker.http.request import PRINCIPAL, Json, Routes, in_param, json_bytes
from worker.services import SERVICES
from worker.wire import limits
from worker.wire.chat_request import ChatMessage, ChatRequest, ChatTool
from worker.wire.completion_request import TokenIds
from worker.wire.strict import ModelName, Strict, Text, converted, only, up_to
from worker.wire.tools import distinct


class TokenizeRequest(Strict):
    """`content` is llama-server's name for the text and adds no special tokens. `prompt` is vLLM's name and adds the
    special tokens that the model expects at both ends; vLLM also takes `messages`."""

    model: ModelName | None = None
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
    BULK: ClassVar = "tokens"

    model: ModelName | None = None
    tokens: TokenIds | Annotated[list[int], Field(max_length=0)]


routes = Routes()


@routes.post("/tokenize", Scope.CHAT)
async def tokenize(request: web.Request, body: TokenizeRequest) -> web.Response:
    model = request.app[SERVICES].model_of(body.model)
    read = await _prompt(request, body.chat, body.model) if body.chat else None

    def answer() -> dict[str, Any]:
        special = body.parse_special is not False
        ids = read or model.tokenize(body.text, add_special=body.adds_special, parse_special=special)
        return tokens_object(model, ids, body)

    return await _apart(request, body.model, answer)


@routes.post("/detokenize", Scope.CHAT)
async def detokenize(request: web.Request, body: DetokenizeRequest) -> web.Response:
    model = request.app[SERVICES].model_of(body.model)

    def answer() -> dict[str, Any]:
        text = b"".join(model.token_bytes(body.tokens)).decode("utf-8", "replace")
        return {"content": text, "prompt": text}

    return await _apart(request, body.model, answer)


class ModelQuery(Query):
    model: str | None = None


@routes.get("/tokenizer_info", Scope.CHAT)
async def describe(request: web.Request, query: ModelQuery) -> Json:
    """The tokenizer of the model that the query names, for evaluation harnesses that count tokens by it."""
    services = request.app[SERVICES]
    services.checked(query.model)
    model = services.model_of(query.model)
    begin, end = (mark or None for mark in model.ends)
    return {"bos_token": begin, "eos_token": end, "pad_token": None, "chat_template": model.chat_template}


async def _prompt(request: web.Request, chat: ChatRequest, model: str | None) -> list[int]:
    """What the model would read of a chat, up to its answer."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    with in_param("messages"):
        messages = await services.attachments.read(tenant_id, chat.messages, "messages")
        chat = chat.model_copy(update={"messages": messages})
        turn = await converted(len(messages) + len(chat.tools or ()), lambda: chat.turn(tenant_id))
        return await services.agent.tokens(replace(turn, model=services.model_of(model).name))


async def _apart(request: web.Request, name: str | None, answer: Callable[[], dict[str, Any]]) -> web.Response:
    """Answered in a thread: a long text takes a second. It counts as a turn in progress."""
    services = request.app[SERVICES]
    services.checked(name)
    with services.admission.turn(request[PRINCIPAL].tenant_id), in_param("tokens", of="logit_bias"):
        return json_bytes(await asyncio.to_thread(lambda: orjson.dumps(answer())))


def tokens_object(model: LanguageModel, ids: list[int], body: TokenizeRequest) -> dict[str, Any]:
    tokens: list[Any] = ids
    pieces = model.token_bytes(ids) if body.with_pieces or body.return_token_strs else []
    if body.with_pieces:
        tokens = [{"id": id, "piece": _piece(piece)} for id, piece in zip(ids, pieces, strict=True)]
    told: dict[str, Any] = {"tokens": tokens, "count": len(ids), "max_model_len": model.context_length}
    if body.return_token_strs:
        told["token_strs"] = [piece.decode("utf-8", "replace") for piece in pieces]
    return told


def _piece(piece: bytes) -> str | list[int]:
    """Bytes where they are no text by themselves, as llama-server has it."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
