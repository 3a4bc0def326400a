"""Cache diagnostics: why the prompt of a request could not go on from the prompt of an earlier one that it names.

The two requests are compared part by part, and the trace says how much of the prompt had to be computed. Responses are
compared with what is stored of them; messages, which are not stored, with the digests of those that asked for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import orjson
from pydantic import ValidationError

from agents.errors import HistoryTooLong, InvalidTurn, NotFound
from agents.message import Compaction, answered_calls
from agents.prompt import assemble
from agents.turn import Turn
from inference.lru_cache import LruCache
from inference.prompt import ChatMessage
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY
from worker.auth.secret import opened
from worker.errors import ApiError
from worker.runs.record import Prompt, first_prompt
from worker.runs.run_services import RunServices
from worker.runs.turn import ResponseTurn
from worker.wire.response_request import ResponseRequest

DIGEST_BYTES = 8  # two parts that differ are told apart; nothing is protected by it
KEPT_BYTES_MAX = 8 * 2**20  # ten thousand conversations of a hundred messages
PROMPT_BYTES = 1000  # of one, beside its messages
SLACK_TOKENS = 16  # the end of a prompt is often written differently once an answer follows it
READ_S = 1.0  # an answer is not held up for longer
ECHOED = ("instructions", "tools", "tool_choice", "text")  # what the response object says of its prompt

NOT_FOUND = {"type": "comparison_response_not_found"}
UNAVAILABLE = {"type": "unavailable"}
IN_MESSAGES = {name: f"{name}_changed" for name in ("model", "system", "tools", "messages")}
IN_RESPONSES = {
    "model": "model_changed",
    "system": "input_changed",
    "tools": "tools_changed",
    "format": "text_format_changed",
    "effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
    "messages": "input_changed",
}


@dataclass(frozen=True, slots=True)
class PromptDigest:
    """The parts of a prompt in their order, each as a digest, and one for each message."""

    parts: Mapping[str, bytes]
    messages: bytes
    compactions: int
    tokens: int = 0

    @classmethod
    def of(cls, turn: Turn, model: str) -> PromptDigest:
        """Takes milliseconds for each megabyte of text."""
        try:
            said = assemble(replace(turn, hints=False))
        except InvalidTurn:  # nothing was asked
            said = [ChatMessage("system", turn.instructions)] if turn.instructions else []
        system = [message.content for message in said[:1] if message.role == "system"]
        answer, switches = turn.answer_format, turn.switches
        parts: dict[str, Any] = {
            "model": model,
            "system": system,
            "tools": [turn.functions, turn.server_tools],
            "format": answer and answer.schema,
            "effort": switches.effort,
            "verbosity": switches.verbosity,
            "rest": [turn.tool_choice, switches.variables],
        }
        messages = b"".join(map(_digest, said[len(system) :]))
        compactions = sum(isinstance(item, Compaction) for item in (*turn.history, *turn.input))
        return cls({name: _digest(part) for name, part in parts.items()}, messages, compactions)

    def change_since(self, before: PromptDigest) -> str | None:
        """The first part that differs; None if this prompt only goes on."""
        changed = (name for name, digest in self.parts.items() if before.parts[name] != digest)
        return next(changed, None if self.messages.startswith(before.messages) else "messages")


def _digest(part: Any) -> bytes:
    return blake2b(orjson.dumps(part, default=_plain), digest_size=DIGEST_BYTES).digest()


def _plain(part: Any) -> Any:
    return dict(part) if isinstance(part, Mapping) else repr(part)


# The prompts of messages that may be compared with a later one, by tenant and message.
RecentPrompts: TypeAlias = LruCache[tuple[UUID, str], PromptDigest]


def recent_prompts() -> RecentPrompts:
    return LruCache(KEPT_BYTES_MAX, lambda _, prompt: PROMPT_BYTES + len(prompt.messages))


class MessageDiagnosis(NamedTuple):
    """Of a message that was asked for with the id of an earlier one, or without one, for the next to name it."""

    recent: RecentPrompts
    tenant_id: UUID
    trace: Trace
    message_id: str
    prompt: PromptDigest
    previous_id: str | None

    def diagnose(self) -> dict[str, Any] | None:
        """The diagnostics, which are known from the first token on; None where nothing stood against reuse. Afterwards,
        another message may name this one."""
        read = first_prompt(self.trace)
        kept = replace(self.prompt, tokens=read.total if read else 0)
        self.recent.put((self.tenant_id, self.message_id), kept)
        return self._compared(read)

    def _compared(self, read: Prompt | None) -> dict[str, Any] | None:
        if self.previous_id is None:
            return None
        before = self.recent.get((self.tenant_id, self.previous_id))
        if before is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        if read is None:
            return {"cache_miss_reason": UNAVAILABLE}
        missed = min(before.tokens, read.total) - read.cached
        if missed <= SLACK_TOKENS:
            return None
        kind = IN_MESSAGES.get(self.prompt.change_since(before) or "")
        return {"cache_miss_reason": {"type": kind, "cache_missed_input_tokens": missed} if kind else UNAVAILABLE}


async def diagnosed(services: RunServices, turn: ResponseTurn, trace: Trace, other_id: str) -> dict[str, Any]:
    """Why the prompt of a response that has ended could not go on from the other one. Never fails: the answer is
    there."""
    diagnosis: dict[str, Any] = UNAVAILABLE
    with trace.span("diagnose"), suppress(TimeoutError, InvalidTurn, HistoryTooLong, ApiError, *DATABASE_AWAY):
        async with asyncio.timeout(READ_S):
            diagnosis = await _compared(services, turn, trace, other_id)
    return diagnosis


async def _compared(services: RunServices, turn: ResponseTurn, trace: Trace, other_id: str) -> dict[str, Any]:
    tenant_id, request = turn.tenant_id, turn.frame.request
    try:
        other = await services.responses.get(tenant_id, other_id)
        items = await services.responses.history(tenant_id, other_id)
        echoed = {name: value for name in ECHOED if (value := other.body[name]) is not None}
        asked = ResponseRequest.model_validate({**echoed, "reasoning": {"effort": other.body["reasoning"]["effort"]}})
    except NotFound:
        return NOT_FOUND
    except ValidationError:  # it was stored by an earlier version
        return UNAVAILABLE
    read = items[: len(items) - len(other.output)]
    before = asked.turn(tenant_id, tuple(opened(services.seals, tenant_id, item, "input") for item in read), ())
    now = request.turn(tenant_id, (*turn.history, *turn.items), ())

    def compare() -> tuple[PromptDigest, PromptDigest]:
        return PromptDigest.of(before, other.body["model"]), PromptDigest.of(now, turn.frame.model)

    earlier, prompt = await asyncio.to_thread(compare)
    if (said := first_prompt(trace)) is None:
        return UNAVAILABLE
    change = prompt.change_since(earlier)
    usage, is_one_step = other.body["usage"] or {}, not answered_calls(other.output)
    # The usage of several steps has all their prompts.
    expected = usage.get("input_tokens", 0) if is_one_step else said.total if change else 0
    if min(expected, said.total) - said.cached <= SLACK_TOKENS:
        return {"type": "cache_hit"}
    if change is None or change not in IN_RESPONSES:
        return UNAVAILABLE
    compacted = change == "messages" and prompt.compactions > earlier.compactions
    return {
        "type": "cache_miss",
        "reason": "context_compacted" if compacted else IN_RESPONSES[change],
        "cache_missed_tokens": said.total - said.cached,
        "comparison_reusable_tokens": said.cached,
    }
