"""The part of a chat model that needs no weights: template, tokenizer, generated turns, and the vocabulary of grammars.

It runs in the caller's process, wherever the tokens are computed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from typing import Any

from inference.adapter import Adapter
from inference.codec import Codec
from inference.errors import UnknownToken, UnseenPicture
from inference.generated_tokens import GeneratedTokens
from inference.generation import Generation, Grammar
from inference.kvcache.miss_report import judge
from inference.llama import LlamaModel
from inference.picture import PictureTokens, VisionEncoder
from inference.prompt import NO_OPTIONS, ChatMessage, Part, PromptTokens, Rendered, Segment, Value, Verdict
from inference.sampling_defaults import SamplingDefaults
from inference.template import INSTEAD
from inference.tokenizer import TextStream

log = logging.getLogger("firsttoken.model")


class TextModel:
    """`weights` may be loaded without tensors. `fingerprint` keys the generated turns: see GeneratedTokens.
    `context_length` is the limit for a prompt with its answer, in tokens. A `codec` that was made before is of another
    model on the same version of the file; `weights` may be its source.

    Raises InvalidTemplate for a model without a usable chat template.
    """

    adapters: Sequence[Adapter] = ()  # LoRA; those of remote engines are not known here
    shares_turns = False  # whether other workers may know turns of its conversations that this one does not
    vision: VisionEncoder | None = None

    def __init__(self, weights: LlamaModel, fingerprint: bytes, context: int, codec: Codec | None = None) -> None:
        self.name = weights.name
        self.context_length = context
        self.created = int(weights.path.stat().st_mtime)
        self.parameters = weights.parameters
        self.chat_template = weights.chat_template or ""
        self.measures: Mapping[str, int] = {
            "n_ctx_train": weights.context_length,
            "n_params": weights.parameters,
            "n_vocab": weights.vocabulary_size,
            "n_embd": weights.dimensions,
            "size": weights.weight_bytes,
        }
        self.sampling_defaults = SamplingDefaults.read(weights.metadata())
        self._weights = weights
        self.ends = weights.bos_text, weights.eos_text
        self.codec = codec or Codec(weights, context)
        self.codec.join()
        self._template, self._tokenizer = self.codec.template, self.codec.tokenizer
        self._pieces, self._end_tokens = self.codec.pieces, self.codec.end_tokens
        self.capabilities = self._template.capabilities
        if self._template.fault:
            log.warning("%s answers no conversation: %s; %s", self.name, self._template.fault, INSTEAD)
        self._turns = GeneratedTokens(self._pieces, fingerprint)

    async def close(self) -> None:
        self.codec.leave()
        if self._weights is not self.codec.source:
            self._weights.close()

    @property
    def prefill_token_s(self) -> float | None:
        return None

    @property
    def switches(self) -> frozenset[str]:
        return self._template.switches

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Value] = NO_OPTIONS,
        *,
        salt: str = "",
    ) -> Rendered:
        rendered = self._template.render(messages, tools, partial(self._turns.get, salt=salt), switches)
        if any(message.pictures for message in messages):
            return Rendered(chain.from_iterable(map(self._seen, rendered)), rendered.rewrites)
        return rendered

    @property
    def sees(self) -> bool:
        return self.vision is not None

    def _seen(self, segment: Segment) -> Iterator[Segment]:
        """A picture as what stands for it. Raises UnseenPicture."""
        if segment.picture is None:
            yield segment
            return
        if self.vision is None:
            raise UnseenPicture(f"the model '{self.name}' cannot see images")
        for piece in self.vision.layout(segment.picture):
            if isinstance(piece, PictureTokens):
                yield Segment("", False, piece.ids, segment.part, picture_tokens=piece)
            else:
                yield Segment("", False, piece, segment.part)

    def default_system(self) -> str:
        return self._template.default_system()

    def encode(self, segments: Sequence[Segment], *, salt: str = "") -> PromptTokens:
        return self._tokenizer.encode(segments, salt=salt)

    def count(self, text: str, *, salt: str = "") -> int:
        return self._tokenizer.count(text, salt=salt)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return self._weights.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        unknown = next((id for id in ids if not 0 <= id < len(self._pieces)), None)
        if unknown is not None:
            raise UnknownToken(f"the model has no token {unknown}; it has {len(self._pieces)}")
        return [self._pieces[id] or self.codec.marks[id] for id in ids]

    def text_pieces(self, ids: Sequence[int], *, over: bool = False) -> list[str]:
        self.token_bytes(ids)
        text = TextStream(self._pieces)
        return [*map(text.push, ids), *([text.flush()] if over else [])]

    def infill(self, before: str, behind: str) -> list[Segment] | None:
        marks = self._weights.infill
        if marks is None:
            return None
        prefix, suffix, middle = (Segment("", True, (mark,), Part.QUESTION) for mark in marks)
        bos = self._weights.bos
        begin = [] if bos is None else [Segment("", True, (bos,), Part.QUESTION)]
        return [
            *begin,
            prefix,
            Segment(before, False, part=Part.QUESTION),
            suffix,
            Segment(behind, False, part=Part.QUESTION),
            middle,
        ]

    def verdict(
        self, segments: Sequence[Segment], prompt: PromptTokens, generation: Generation, *, salt: str = ""
    ) -> Verdict | None:
        if generation.facts.miss is None:
            return None
        outline = self._tokenizer.outline(segments, prompt.starts, salt=salt)
        return judge(outline, generation.facts.miss, self._pieces)

    def remember(self, message: ChatMessage, ids: Sequence[int], *, salt: str = "") -> bytes | None:
        key = self._turns.put(message, ids, salt=salt)
        return key if self.shares_turns else None

    def unknown(self, messages: Sequence[ChatMessage], *, salt: str = "") -> list[bytes]:
        return self._turns.missing(messages, salt=salt) if self.shares_turns else []

    def learn(self, turns: Iterable[tuple[bytes, tuple[int, ...]]]) -> None:
        self._turns.load(turns)

    def prepare(self, grammar: str, trigger: str = "", *, salt: str = "") -> Grammar:
        return self.codec.vocabulary.compile(grammar, trigger, salt=salt)

    def stats(self) -> dict[str, Any]:
        """Gauges and totals for health and metrics."""
        return {
            "model": self.name,
            "parameters": self.parameters,
            "token_cache_bytes": self._tokenizer.kept_bytes + self._turns.kept_bytes,
            "tokenizer_hits_total": self._tokenizer.hits,
            "tokenizer_misses_total": self._tokenizer.misses,
        }

    @property
    def vocabulary_size(self) -> int:
        return len(self._pieces)

    @cached_property
    def vocabulary_digest(self) -> str:
        """Equal for models whose token ids have the same meaning."""
        digest = blake2b(digest_size=16)
        for token, piece in enumerate(self._pieces):
            digest.update(b"%d %d %b" % (len(piece), token in self._end_tokens, piece))
        return digest.hexdigest()
