"""A request in the format of an engine: vLLM's `POST /inference/v1/generate`, from token ids to token ids.

The object "firsttoken" holds what only our own engine supports; vLLM ignores it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from inference.generation import NO_DEADLINE, Due, Grammar, Priority, Sampling
from inference.grammar.constraint import Constraint

PATH = "/inference/v1/generate"
MODELS_PATH = "/v1/models"
# vLLM's default limit. It counts the sampled token among the alternatives, so one more is requested while the limit
# allows.
LOGPROBS_MAX = 20
BOUNDARIES_MAX = 16  # of a prompt: more than it has parts
TOP_P_MIN = 1e-6  # vLLM rejects 0, which leaves only the most likely token; so does this


@dataclass(frozen=True, slots=True)
class SentGrammar:
    """A grammar compiled here, so that an invalid schema is refused before anything is sent, and enforced by the
    engine. `begins` is its marker: see `LanguageModel.prepare`. `by_token` is the variant for engines other than ours:
    see `inference.grammar.lark`."""

    text: str
    begins: str
    compiled: Grammar
    by_token: str

    def start(self) -> Constraint:
        return self.compiled.start()


@dataclass(frozen=True, slots=True)
class Ask:
    """The first `shared` tokens of the prompt contain no tenant's data. `boundaries`: see `PromptTokens`. `salt`
    is not the tenant's name. `end_tokens` are sent to engines that may know only some of them."""

    id: str
    prompt: Sequence[int]
    sampling: Sampling
    salt: str
    priority: Priority
    shared: int = 0
    boundaries: Sequence[int] = ()
    due: Due = NO_DEADLINE
    traceparent: str = ""  # a header: see `Transport.post`
    end_tokens: Collection[int] = ()

    @property
    def goes_on_anywhere(self) -> bool:
        """Whether any engine can resume it seamlessly, because the next token depends only on the tokens so far. For
        other requests, the engine has to know which tokens belong to the answer: ours does.
        """
        s = self.sampling
        penalises = s.presence_penalty or s.frequency_penalty or s.repeat_penalty != 1.0
        drawn = s.temperature > 0 and s.seed is not None
        limited = s.thought is not None and s.thought.tokens is not None
        return not (penalises or drawn or limited or s.grammar or s.deterministic)

    def body(
        self, now_ns: int, generated: Sequence[int] = (), deadline_ns: int | None = None, *, ours: bool = True
    ) -> bytes:
        """The body of the request for what follows the `generated` tokens, for an engine of this project or another
        one. Times are sent as time left."""
        s = self.sampling
        grammar = s.grammar if isinstance(s.grammar, SentGrammar) else None
        sampling: dict[str, Any] = {
            "max_tokens": max(1, s.max_tokens - len(generated)),
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": s.top_k,
            "min_p": s.min_p,
            "presence_penalty": s.presence_penalty,
            "frequency_penalty": s.frequency_penalty,
            "repetition_penalty": s.repeat_penalty,
            "detokenize": False,
        }
        if s.seed is not None:
            sampling["seed"] = s.seed
        if s.logit_bias:
            sampling["logit_bias"] = {str(token): bias for token, bias in s.logit_bias.items()}
        if s.top_logprobs is not None:
            sampling["logprobs"] = s.top_logprobs
        if grammar and not grammar.begins:
            sampling["structured_outputs"] = {"grammar": grammar.text}
        if not ours:
            sampling |= self._for_others(grammar)
        own = {
            "deadline_ms": _left_ms(deadline_ns, now_ns),
            "due_ms": None if generated else _left_ms(self.due.at_ns, now_ns),
            "pace_ms": self.due.pace_s and self.due.pace_s * 1e3,
            "waits": self.due.waits or None,
            "deterministic": s.deterministic or None,
            "ahead": self.priority is Priority.AHEAD or None,
            "shared": self.shared or None,
            "boundaries": list(self.boundaries[-BOUNDARIES_MAX:]) or None,
            "written": len(generated) or None,
            "thought": asdict(s.thought) if s.thought and s.thought.tokens is not None else None,
            "marked_grammar": {"text": grammar.text, "begins": grammar.begins} if grammar and grammar.begins else None,
        }
        body = {
            "request_id": self.id,
            "token_ids": [*self.prompt, *generated],
            "sampling_params": sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": int(self.priority),
            "firsttoken": {name: value for name, value in own.items() if value is not None},
        }
        if self.salt:  # vLLM accepts a missing salt, but not an empty one
            body["cache_salt"] = self.salt
        return orjson.dumps(body)

    def _for_others(self, grammar: SentGrammar | None) -> dict[str, Any]:
        """Fields that differ for other engines, or are sent only to them."""
        s = self.sampling
        told: dict[str, Any] = {
            # An engine may know only one of its model's end tokens, and would continue after the others.
            "stop_token_ids": sorted(self.end_tokens),
            "top_p": max(s.top_p, TOP_P_MIN),
        }
        if s.top_logprobs is not None:
            told["logprobs"] = min(s.top_logprobs + 1, LOGPROBS_MAX)
        if grammar and not grammar.begins:
            told["structured_outputs"] = {"grammar": grammar.by_token}
        return told


def _left_ms(at_ns: int | None, now_ns: int) -> float | None:
    return None if at_ns is None else max(1.0, (at_ns - now_ns) / 1e6)
