"""Fakes for tests of policy: they keep the contracts of the real parts and follow a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import exp, log
from sys import maxunicode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.adapter import Adapter
from inference.backend import Chunk, Region
from inference.errors import InferenceError, PromptTooLong, UnknownToken, UnseenPicture
from inference.generation import (
    ANY_TERMS,
    Delta,
    Due,
    Facts,
    Finish,
    Generation,
    Priority,
    Sampling,
    Stamps,
    Terms,
    TokenLogprob,
)
from inference.grammar.constraint import Constraint
from inference.message_fitting import EVERYTHING, Capabilities
from inference.prompt import NO_OPTIONS, ChatMessage, Miss, Part, PromptTokens, Rendered, Segment, Value, Verdict
from inference.sampling_defaults import SamplingDefaults
from inference.tokenizer import CHARACTER_BYTES, Room
from inference.trace import now_ns


@dataclass(frozen=True)
class ScriptedGrammar:
    """Records its text and its marker; the replies are not constrained by it."""

    text: str
    trigger: str

    def start(self) -> Constraint:
        raise NotImplementedError


class ScriptedGeneration:
    """Replays a text in pieces of a few characters; each piece is one token."""

    def __init__(
        self,
        text: str,
        prompt_tokens: int,
        sampling: Sampling,
        piece_chars: int,
        deadline_ns: int | None = None,
        logprobs: Sequence[float] = (0.0,),
        written: Sequence[int] = (),
    ) -> None:
        self.facts = Facts(stamps=Stamps(submitted_ns=now_ns()))
        self.prompt_tokens = prompt_tokens
        self.queue_position: int | None = None
        self.read_tokens: int | None = None
        self.ids: list[int] = list(written)
        self.finish: Finish | None = None
        self._piece_chars = piece_chars
        self._ends_thought = False
        self._pieces = [text[i : i + piece_chars] for i in range(0, len(text), piece_chars)]
        self.sampling = sampling
        self._sure = logprobs
        self._deadline_ns = deadline_ns
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def end_reasoning(self) -> None:
        """Go on with the closing mark, now or as soon as there is a thought."""
        self._ends_thought = True

    def _end_thought(self) -> None:
        """End the thought that is being told if it is to end. It has as many tokens as pieces."""
        limit, written, chars = self.sampling.reasoning_limit, len(self.ids), self._piece_chars
        if limit is None:
            return
        spent = (written * chars - (0 if limit.begun else len(limit.open))) // chars
        if not self._ends_thought and (limit.tokens is None or spent < limit.tokens):
            return  # as nearly always: long replies must not be joined at every token
        told, left = "".join(self._pieces[:written]), "".join(self._pieces[written:])
        if limit.close not in told and limit.close in left and (limit.begun or limit.open in told):
            left = left[left.index(limit.close) :]
            self._pieces[written:] = [left[at : at + chars] for at in range(0, len(left), chars)]

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        facts, stamps = self.facts, self.facts.stamps
        facts.miss = Miss(0)
        stamps.admitted_ns = stamps.prefilled_ns = stamps.first_token_ns = now_ns()
        facts.prefill_steps.count = facts.prefill_steps.requests = 1
        while len(self.ids) < len(self._pieces):
            await asyncio.sleep(0)  # a step: other coroutines run between two tokens
            if self._cancelled.is_set():
                self.finish = Finish.CANCELLED
                return
            if self._deadline_ns is not None and now_ns() >= self._deadline_ns:
                self.finish = Finish.DEADLINE
                return
            if len(self.ids) == self.sampling.max_tokens:
                self.finish = Finish.LENGTH
                return
            self._end_thought()
            piece = self._pieces[len(self.ids)]
            self.ids.append(len(self.ids))
            facts.decode_steps.count = facts.decode_steps.requests = len(self.ids)
            stamps.last_token_ns = now_ns()
            yield Delta(piece, 1, self._told(piece))
        self.finish = Finish.STOP

    def _told(self, piece: str) -> tuple[TokenLogprob, ...]:
        top = self.sampling.top_logprobs
        if top is None:
            return ()
        logprob, token = self._sure[min(len(self.ids), len(self._sure)) - 1], piece.encode("utf-8", "replace")
        other = log(max(1 - exp(logprob), 1e-9))
        return (TokenLogprob(token, logprob, tuple([(token, logprob), (b"?", other)][:top])),)

    async def admitted(self) -> None:
        pass

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        async for delta in self:
            receive(delta)


@dataclass
class ScriptedModel:
    """A LanguageModel that answers with `replies` in order (the last one repeatedly) and records its prompts.

    The template is plain text; one token is one character.
    """

    replies: Sequence[str]
    name: str = "scripted"
    context_length: int = 100_000
    piece_chars: int = 3
    fills: bool = False  # whether it supports infill
    switches: frozenset[str] = frozenset()  # rendered at the start of the prompt when set
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    adapters: Sequence[Adapter] = ()
    measures: Mapping[str, int] = field(default_factory=dict)
    ends: tuple[str, str] = "", ""
    logprobs: Sequence[float] = (0.0,)  # of its tokens; the last value applies to all that follow
    prefill_token_s: float | None = None
    sees: bool = False  # a picture is rendered as its digest
    capabilities: Capabilities = EVERYTHING
    chat_template: str = ""  # determines the format of the replies; prompts are rendered as plain text anyway
    prompts: list[str] = field(default_factory=list)
    generations: list[ScriptedGeneration] = field(default_factory=list)
    remembered: list[ChatMessage] = field(default_factory=list)
    spelled: list[tuple[int, ...]] = field(default_factory=list)  # the tokens of what it remembered
    ahead: list[str] = field(default_factory=list)  # prefixes that were prefilled ahead
    shared: list[str] = field(default_factory=list)
    grammars: list[ScriptedGrammar] = field(default_factory=list)  # prepared
    dues: list[Due] = field(default_factory=list)
    salts: set[str] = field(default_factory=set)  # the tenants it was called for
    shares_turns: bool = False
    learnt: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # turns that others remembered

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Value] = NO_OPTIONS,
        *,
        salt: str = "",
    ) -> Rendered:
        self.salts.add(salt)
        segments = [Segment(f"<{name}={value}>", trusted=False) for name, value in switches.items()]
        segments += [Segment(json.dumps(tool) + "\n", trusted=False) for tool in tools]
        question = next((message for message in reversed(messages) if message.role == "user"), None)
        for message in messages:
            part = Part.QUESTION if message is question else Part.HISTORY
            segments += [Segment(f"<{message.role}>", trusted=True), Segment(message.content, False, part=part)]
            if message.pictures and not self.sees:
                raise UnseenPicture(f"the model '{self.name}' cannot see images")
            segments += [Segment(f"<image {placed.picture.digest}>", False, part=part) for placed in message.pictures]
            segments += [Segment(f"<call>{call.name} {call.arguments}</call>", False) for call in message.tool_calls]
            segments.append(Segment("\n", trusted=True))
        return Rendered([*segments, Segment("<assistant>", trusted=True)])

    def default_system(self) -> str:
        return ""

    def encode(self, segments: Sequence[Segment], *, salt: str = "") -> PromptTokens:
        self.salts.add(salt)
        self._room.check(segments)
        return PromptTokens(id for segment in segments for id in (segment.ids or map(ord, segment.text)))

    def count(self, text: str, *, salt: str = "") -> int:
        self.salts.add(salt)
        return len(text) if self._room.excess_bytes([text]) <= 0 else self.context_length + 1

    @property
    def _room(self) -> Room:
        return Room(self.context_length, CHARACTER_BYTES)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [*([1] if add_special else []), *map(ord, text)]

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        for id in ids:
            if id > maxunicode:
                raise UnknownToken(f"the model has no token {id}")
        return [chr(id).encode() for id in ids]

    @property
    def _reply(self) -> str:
        return self.replies[min(len(self.prompts), len(self.replies) - 1)]

    def text_pieces(self, ids: Sequence[int], *, over: bool = False) -> list[str]:
        """As if the tokens were those of the next reply."""
        reply = self._reply
        pieces = [reply[at : at + self.piece_chars] for at in range(0, len(reply), self.piece_chars)]
        if len(ids) > len(pieces):
            raise UnknownToken(f"the reply has no {len(ids)} tokens")
        return [*pieces[: len(ids)], *([""] if over else [])]

    def infill(self, before: str, behind: str) -> list[Segment] | None:
        if not self.fills:
            return None
        return [Segment(f"<before>{before}<behind>{behind}<between>", trusted=True, part=Part.QUESTION)]

    def verdict(
        self, segments: Sequence[Segment], prompt: PromptTokens, generation: Generation, *, salt: str = ""
    ) -> Verdict | None:
        self.salts.add(salt)
        return None

    def prepare(self, grammar: str, trigger: str = "", *, salt: str = "") -> ScriptedGrammar:
        self.grammars.append(ScriptedGrammar(grammar, trigger))
        return self.grammars[-1]

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        self.salts.add(terms.salt)
        self.dues.append(terms.due)
        if len(prompt) >= self.context_length:
            raise PromptTooLong(f"{len(prompt)} tokens do not fit a context of {self.context_length}")
        reply = self._reply
        self.prompts.append("".join(map(chr, prompt)))
        generation = ScriptedGeneration(
            *(reply, len(prompt), sampling, self.piece_chars, terms.deadline_ns, self.logprobs, terms.written)
        )
        self.generations.append(generation)
        return generation

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        self.salts.add(salt)

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> ScriptedGeneration | None:
        self.salts.add(salt)
        self.ahead.append("".join(map(chr, prompt)))
        generation = ScriptedGeneration("", len(prompt), Sampling(max_tokens=0), self.piece_chars)
        generation.facts.stamps.admitted_ns = generation.facts.stamps.prefilled_ns = now_ns()
        self.generations.append(generation)
        return generation

    def share(self, beginning: Sequence[int]) -> None:
        self.shared.append("".join(map(chr, beginning)))

    def remember(self, message: ChatMessage, ids: Sequence[int], *, salt: str = "") -> bytes | None:
        self.salts.add(salt)
        self.remembered.append(message)
        self.spelled.append(tuple(ids))
        return self._digest(message, salt) if self.shares_turns else None

    def unknown(self, messages: Sequence[ChatMessage], *, salt: str = "") -> list[bytes]:
        said = [self._digest(message, salt) for message in messages if message.role == "assistant"]
        return [digest for digest in said if digest not in self.learnt] if self.shares_turns else []

    def learn(self, turns: Iterable[tuple[bytes, tuple[int, ...]]]) -> None:
        self.learnt.update(turns)

    @staticmethod
    def _digest(message: ChatMessage, salt: str) -> bytes:
        return f"{salt} {message.content}".encode()


def scripted_token(prefix: Sequence[int], vocabulary: int) -> int:
    """The token that ScriptedBackend finds most likely after a prefix: any change of the prefix changes it."""
    state = 17
    for token in prefix:
        state = (state * 31 + token + 1) % 1_000_003
    return state % vocabulary


@dataclass
class ScriptedBackend:
    """A device whose logits depend on the exact tokens in the slot, and which enforces the rules of the real one.

    `cells[slot]` is the content of a slot. `fail_next` makes the next decode raise, `poison` every decode with this
    token, `refuse_next` the next restore. A failing decode leaves half of its chunks computed.
    """

    slots: int
    context: int
    rows_max: int
    vocabulary: int = 50
    exact: bool = True
    streams: bool = True
    rewinds: bool = True
    crowded: bool = False
    fail_next: bool = False
    poison: int | None = None
    refuse_next: bool = False
    steps: list[int] = field(default_factory=list)  # rows of each step
    cells: dict[int, list[int]] = field(default_factory=dict)
    told: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # by the last step

    @property
    def drops(self) -> bool:
        return self.rewinds

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        self.told[:] = np.nan
        numbers = [chunk.slot for chunk in chunks]
        assert numbers == sorted(set(numbers)), f"slots out of order: {numbers}"
        count = sum(len(chunk.tokens) for chunk in chunks)
        assert 0 < count <= self.rows_max, f"{count} rows"
        if self.fail_next or any(self.poison in chunk.tokens for chunk in chunks):
            self.fail_next = False
            for chunk in chunks[: len(chunks) // 2]:
                self._compute(chunk)
            raise InferenceError("scripted failure")
        self.steps.append(count)
        rows = [row for chunk in chunks for row in self._compute(chunk)]
        self.told = np.array(rows, np.float32).reshape(-1, self.vocabulary)
        return self.told

    def _compute(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        cells = self.cells.setdefault(chunk.slot, [])
        assert 0 <= chunk.slot < self.slots
        assert chunk.position == len(cells), f"slot {chunk.slot} holds {len(cells)} tokens, not {chunk.position}"
        cells.extend(chunk.tokens)
        assert len(cells) <= self.context
        ends = range(len(cells) - chunk.outputs + 1, len(cells) + 1)
        return [self._logits(cells[:end]) for end in ends]

    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        row = np.zeros(self.vocabulary, np.float32)
        row[scripted_token(prefix, self.vocabulary)] = 5.0
        return row

    def fork(self, source: int, target: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None:
        if length > len(self.cells[source]):
            raise InferenceError(f"slot {source} holds {len(self.cells[source])} tokens, not {length}")
        self.cells[target] = list(self.cells[source])
        self.truncate(target, length, checkpoint)

    def truncate(self, slot: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None:
        cells = self.cells.setdefault(slot, [])
        assert length <= len(cells), f"slot {slot} holds {len(cells)} tokens, cannot keep {length}"
        if checkpoint is not None:
            assert self._agree(_cells(checkpoint), cells[:length]), "a checkpoint of other tokens"
        elif not self.rewinds and length not in (0, len(cells)):
            raise InferenceError(f"slot {slot} cannot go back to {length} tokens")
        del cells[length:]

    def _agree(self, state: list[int], cells: list[int]) -> bool:
        return state == cells

    def checkpoint(self, slot: int) -> NDArray[np.uint8]:
        assert not self.rewinds, "this model needs none"
        return self.save(slot)

    def save(self, slot: int) -> NDArray[np.uint8]:
        return np.frombuffer(np.array(self.cells[slot], np.int32).tobytes(), np.uint8)

    def restore(self, slot: int, state: NDArray[np.uint8]) -> None:
        if self.refuse_next:
            self.refuse_next, self.cells[slot] = False, []
            raise InferenceError("scripted refusal")
        self.cells[slot] = _cells(state)

    def regions(self, state: NDArray[np.uint8], tokens: int) -> Sequence[Region]:
        return [Region(0, 1, state.nbytes, 4 * tokens)]

    def surviving(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self.cells.clear()


def _cells(state: NDArray[np.uint8]) -> list[int]:
    cells: list[int] = np.frombuffer(state.tobytes(), np.int32).tolist()
    return cells
