"""A request in the format of an engine, vLLM's `POST /inference/v1/generate`, from token ids to token ids; and its
response as server-sent events, written by our engine and parsed by the worker. Pure.

The events are vLLM's: `choices` with token ids, then the usage with empty choices, then [DONE]; or an `error`. The
object "firsttoken" in both holds what only our own engine supports; vLLM and its clients ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from inference.generation import (
    DRAWN,
    Finish,
    Forecast,
    Generation,
    Grammar,
    Predicted,
    Priority,
    ReasoningLimit,
    Sampling,
    Spent,
    Steps,
    Terms,
    TokenLogprob,
)
from inference.grammar.constraint import Constraint
from inference.prompt import Miss

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
    engine. `trigger`: see `LanguageModel.prepare`. `by_token` is the variant for engines other than ours:
    see `inference.grammar.lark`."""

    text: str
    trigger: str
    compiled: Grammar
    by_token: str

    def start(self) -> Constraint:
        return self.compiled.start()


@dataclass(frozen=True, slots=True)
class Ask:
    """The first `shared` tokens of the prompt contain no tenant's data. `boundaries`: see `PromptTokens`. The salt of
    the `terms` is not the tenant's name. `end_tokens` are sent to engines that may know only some of them."""

    id: str
    prompt: Sequence[int]
    sampling: Sampling
    terms: Terms
    shared: int
    boundaries: Sequence[int]
    end_tokens: frozenset[int]

    @property
    def goes_on_anywhere(self) -> bool:
        """Whether any engine can resume it seamlessly, because the next token depends only on the tokens so far. For
        other requests, the engine has to know which tokens belong to the answer: ours does.
        """
        s = self.sampling
        penalises = s.presence_penalty or s.frequency_penalty or s.repeat_penalty != 1.0
        drawn = s.temperature > 0 and s.seed is not None
        return not (penalises or drawn or self._reasoning_limit or s.grammar or s.deterministic)

    @property
    def _reasoning_limit(self) -> ReasoningLimit | None:
        limit = self.sampling.reasoning_limit
        return limit if limit and limit.tokens is not None else None

    def body(self, now_ns: int, generated: Sequence[int], *, ours: bool) -> bytes:
        """The body of the request for what follows the `generated` tokens, for an engine of this project or another
        one. Times are sent as time left."""
        s, terms = self.sampling, self.terms
        grammar = s.grammar if isinstance(s.grammar, SentGrammar) else None
        sampling: dict[str, Any] = {spelled: getattr(s, name) for name, spelled in DRAWN.items()}
        sampling |= {"max_tokens": max(1, s.max_tokens - len(generated)), "detokenize": False}
        if s.seed is not None:
            sampling["seed"] = s.seed
        if s.logit_bias:
            sampling["logit_bias"] = {str(token): bias for token, bias in s.logit_bias.items()}
        if s.top_logprobs is not None:
            sampling["logprobs"] = s.top_logprobs
        lazy = grammar if grammar and grammar.trigger else None
        if grammar and not lazy:
            sampling["structured_outputs"] = {"grammar": grammar.text}
        if not ours:
            sampling |= self._for_others(grammar)
        own = {
            "deadline_ms": _left_ms(terms.deadline_ns, now_ns),
            "due_ms": None if generated else _left_ms(terms.due.at_ns, now_ns),
            "pace_ms": terms.due.pace_s and terms.due.pace_s * 1e3,
            "waits": terms.due.waits or None,
            "deterministic": s.deterministic or None,
            "ahead": terms.priority is Priority.AHEAD or None,
            "shared": self.shared or None,
            "boundaries": list(self.boundaries[-BOUNDARIES_MAX:]) or None,
            "written": len(generated) or None,
            "prediction": list(terms.prediction) or None,
            "thought": asdict(limit) if (limit := self._reasoning_limit) else None,
            "marked_grammar": {"text": lazy.text, "begins": lazy.trigger} if lazy else None,
        }
        body = {
            "request_id": self.id,
            "token_ids": [*self.prompt, *generated],
            "sampling_params": sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": int(terms.priority),
            "firsttoken": {name: value for name, value in own.items() if value is not None},
        }
        if terms.salt:  # vLLM accepts a missing salt, but not an empty one
            body["cache_salt"] = terms.salt
        return orjson.dumps(body)

    def _for_others(self, grammar: SentGrammar | None) -> dict[str, Any]:
        """Fields that differ for other engines, or are sent only to them."""
        s = self.sampling
        params: dict[str, Any] = {
            # An engine may know only one of its model's end tokens, and would continue after the others.
            "stop_token_ids": sorted(self.end_tokens),
            "top_p": max(s.top_p, TOP_P_MIN),
        }
        if s.top_logprobs is not None:
            params["logprobs"] = min(s.top_logprobs + 1, LOGPROBS_MAX)
        if grammar and not grammar.trigger:
            params["structured_outputs"] = {"grammar": grammar.by_token}
        return params


def _left_ms(at_ns: int | None, now_ns: int) -> float | None:
    return None if at_ns is None else max(1.0, (at_ns - now_ns) / 1e6)


# One step of one answer: with twenty alternatives per token, some tokens take a few kilobytes. Also the limit for bytes
# without an event: the comments that keep a connection alive are a few kilobytes per hour.
EVENT_BYTES_MAX = 2**20
# Numbers from an engine are stored with others in one row: one that overflows its column would lose the whole row.
COUNT_MAX = 2**31 - 1
MS_MAX = 1e9  # eleven days
NS_MAX = 10**15
DONE = b"[DONE]"
END = b"data: [DONE]\n\n"
TOKEN_ID = "token_id:"  # prefix with which some versions of vLLM spell a token that they do not decode
_REASONS = {"stop": Finish.STOP, "length": Finish.LENGTH, "deadline": Finish.DEADLINE, "error": Finish.ERROR}
_SPELLED = {finish: reason for reason, finish in _REASONS.items()}


class MalformedStream(ValueError):
    """The data does not follow the protocol of an engine."""


class Placement(NamedTuple):
    """What our engine reports with the first token: queue time, prefill time, what the cache lacked, and when the token
    was expected."""

    queue_ms: float
    prefill_ms: float
    miss: Miss | None
    forecast: Forecast | None = None
    prefill_steps: Steps | None = None


class StreamUpdate(NamedTuple):
    """The content of one event. `counts` are the drafted and accepted tokens, reported at the end."""

    ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    finish: Finish | None = None
    aborted: bool = False  # by the engine, without a request from here
    cached: int | None = None
    placement: Placement | None = None
    counts: tuple[int, int] | None = None
    decode_steps: Steps | None = None
    engine_ms: float | None = None  # from submission there to the last token, reported at the end
    spent: Spent | None = None  # engine time used, reported at the end
    predicted: Predicted | None = None  # drafted tokens of the request's prediction, reported at the end
    error: tuple[str, int, str] | None = None  # message, status and type


class Events:
    """Splits a body into the data of its events. Raises MalformedStream for one that does not end or has no events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._said_nothing = 0  # bytes since the last event

    @property
    def is_within_one(self) -> bool:
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        rest = self._rest
        if rest.endswith(b"\r"):
            data = b"\r" + data
            del rest[-1:]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if rest:  # search only the new data for an end, so that many small pieces do not take quadratic time
            begin = max(0, len(rest) - 1)
            rest += data
            data = b"" if rest.find(b"\n\n", begin) < 0 else bytes(rest)
        if data:
            *events, left = data.split(b"\n\n")
            self._rest = bytearray(left)
        else:
            events = []
        if len(self._rest) > EVENT_BYTES_MAX:
            raise MalformedStream("an unterminated event")
        said = [event[6:] if event.startswith(b"data: ") else _data(event) for event in events]
        if any(said):
            self._said_nothing = 0
        elif (size := self._said_nothing + sum(map(len, events))) > EVENT_BYTES_MAX:
            raise MalformedStream("a body without events")
        else:
            self._said_nothing = size
        return said


def _data(event: bytes) -> bytes:
    """The data of an event with other fields; empty for a comment."""
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))


def read(data: bytes, pieces: Sequence[bytes]) -> StreamUpdate:
    """Parse the data of an event. Raises MalformedStream."""
    try:
        return _update(orjson.loads(data), pieces)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise MalformedStream(f"an unreadable event: {repr(error)[:100]}") from None


def _update(event: Mapping[str, Any], pieces: Sequence[bytes]) -> StreamUpdate:
    choices, own = event.get("choices"), event.get("firsttoken")
    if own is None and choices and "usage" not in event:  # nearly all events
        return _chosen(choices[0], pieces)
    if (error := event.get("error")) is not None:
        code = error.get("code")
        status, kind = code if isinstance(code, int) else 500, error.get("type")
        return StreamUpdate(error=(str(error.get("message")), status, str(kind)))
    said: dict[str, Any] = {}
    if details := (event.get("usage") or {}).get("prompt_tokens_details"):
        said["cached"] = _count(details.get("cached_tokens") or 0)
    if own:
        said |= _own(own, pieces)
    return (_chosen(choices[0], pieces) if choices else StreamUpdate())._replace(**said)


def _own(own: Mapping[str, Any], pieces: Sequence[bytes]) -> dict[str, Any]:
    """The fields that only our engine reports."""
    said: dict[str, Any] = {}
    if "queue_ms" in own:
        said["placement"] = _placement(own, pieces)
    if "drafted" in own:
        drafted = _count(own["drafted"])
        said["counts"] = drafted, min(drafted, _count(own["accepted"]))
        said["decode_steps"] = _steps(own)
        said["predicted"] = Predicted(*map(_count, own.get("predicted", (0, 0))))
    if (took := own.get("engine_ms")) is not None:
        said["engine_ms"] = _duration(took, MS_MAX)
    if "engine_ns" in own:
        said["spent"] = Spent(*(_count(own[name], NS_MAX) for name in ("engine_ns", "speculation_ns")))
    if reason := own.get("finish"):
        said["finish"], said["aborted"] = _REASONS[reason], False
    return said


def _chosen(choice: Mapping[str, Any], pieces: Sequence[bytes]) -> StreamUpdate:
    ids, reason = choice.get("token_ids") or (), choice.get("finish_reason")
    _check_ids(ids, pieces)
    content = (choice.get("logprobs") or {}).get("content") or ()
    logprobs = [_logprob(each, pieces) for each in content]
    return StreamUpdate(ids, logprobs, _REASONS.get(reason) if reason else None, aborted=reason == "abort")


def _check_ids(ids: Iterable[Any], pieces: Sequence[bytes]) -> None:
    for id in ids:
        if type(id) is not int or not 0 <= id < len(pieces):
            raise MalformedStream(f"no token: {str(id)[:20]}")


def _logprob(entry: Mapping[str, Any], pieces: Sequence[bytes]) -> TokenLogprob:
    top = [(_piece(each, pieces), _number(each["logprob"])) for each in entry.get("top_logprobs") or ()]
    top.sort(key=itemgetter(1), reverse=True)  # vLLM lists the sampled token first
    return TokenLogprob(_piece(entry, pieces), _number(entry["logprob"]), tuple(top))


def _piece(entry: Mapping[str, Any], pieces: Sequence[bytes]) -> bytes:
    """The bytes of a token, which is given by its bytes or its id."""
    if (spelled := entry.get("bytes")) is not None:
        if not isinstance(spelled, list):  # bytes(n) would allocate n zeros
            raise MalformedStream("invalid bytes of a token")
        return bytes(spelled)
    id = entry.get("token_id")  # since vLLM 0.32; earlier versions spell it in the text
    return pieces[_count(int(entry["token"].removeprefix(TOKEN_ID)) if id is None else id)]


def _placement(own: Mapping[str, Any], pieces: Sequence[bytes]) -> Placement:
    miss, expected = own.get("miss"), own.get("expected_s")
    forecast = None if expected is None else Forecast(*(_duration(each, MS_MAX) for each in expected[:2]))
    queue_ms, prefill_ms = (_duration(own[name], MS_MAX) for name in ("queue_ms", "prefill_ms"))
    placement = Placement(queue_ms, prefill_ms, None, forecast, _steps(own))
    if miss is None:
        return placement
    wanted, held = (tuple(miss[name]) for name in ("wanted", "held"))
    _check_ids((*wanted, *held), pieces)
    return placement._replace(miss=Miss(_count(miss["cached"]), _count(miss["seen"]), wanted, held))


def _steps(own: Mapping[str, Any]) -> Steps:
    """Zero for an engine of an earlier version, which does not report them."""
    return Steps(*map(_count, own.get("steps", (0, 0))))


def _count(value: Any, most: int = COUNT_MAX) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedStream(f"no count: {str(value)[:20]}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value):
        raise MalformedStream(f"no number: {str(value)[:20]}")
    return float(value)


def _duration(value: Any, most: float) -> float:
    if not 0 <= (found := _number(value)) <= most:
        raise MalformedStream(f"no duration: {found}")
    return found


# --- the engine's side ---


def spell_tokens(ids: Sequence[int]) -> bytes:
    """The event of nearly every step."""
    return b'data: {"choices":[{"index":0,"token_ids":[%b]}]}\n\n' % ",".join(map(str, ids)).encode()


def spell_first(id: str, ids: Sequence[int], logprobs: Iterable[TokenLogprob], generation: Generation) -> bytes:
    """The first event: placement of the request and its first tokens, if any."""
    facts = generation.facts
    stamps, miss = facts.stamps, facts.miss
    own: dict[str, Any] = {
        "queue_ms": max(0, stamps.admitted_ns - stamps.submitted_ns) / 1e6,
        "prefill_ms": max(0, stamps.prefilled_ns - stamps.admitted_ns) / 1e6,
        "steps": (facts.prefill_steps.count, facts.prefill_steps.requests),
    }
    if miss is not None:
        own["miss"] = {"cached": miss.cached, "seen": miss.seen, "wanted": miss.wanted, "held": miss.held}
    if (forecast := facts.forecast) is not None:
        own["expected_s"] = (forecast.wait_s, forecast.prefill_s)
    event = {"request_id": id, "choices": [_choice(ids, logprobs)], "usage": _usage(generation), "firsttoken": own}
    return _event(event)


def spell_likely(ids: Sequence[int], logprobs: Iterable[TokenLogprob]) -> bytes:
    """An event of tokens with their log probabilities."""
    return _event({"choices": [_choice(ids, logprobs)]})


def spell_end(generation: Generation) -> bytes:
    """Finish reason, usage, and the end of the stream."""
    finish = generation.finish or Finish.ERROR
    reason = _SPELLED.get(finish, "abort")
    facts = generation.facts
    stamps = facts.stamps
    own: dict[str, Any] = {
        "drafted": facts.acceptance.drafted,
        "accepted": facts.acceptance.accepted,
        "predicted": (facts.predicted.accepted, facts.predicted.rejected),
        "steps": (facts.decode_steps.count, facts.decode_steps.requests),
        "engine_ms": max(0, stamps.last_token_ns - stamps.submitted_ns) / 1e6,
        "engine_ns": facts.spent.engine_ns,
        "speculation_ns": facts.spent.speculation_ns,
        "finish": _SPELLED.get(finish),
    }
    known = reason if reason != "deadline" else "abort"  # vLLM has no deadlines
    ended = {"choices": [{"index": 0, "token_ids": (), "finish_reason": known}], "firsttoken": own}
    return _event(ended) + _event({"choices": (), "usage": _usage(generation)}) + END


def spell_nothing() -> bytes:
    """The whole stream for a request that needed no computation."""
    return _event({"choices": [{"index": 0, "token_ids": (), "finish_reason": "stop"}]}) + END


def spell_error(message: str, status: int, code: str) -> bytes:
    return _event({"error": {"message": message, "type": code, "param": None, "code": status}}) + END


def _choice(ids: Sequence[int], logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "token_ids": ids}
    content = [
        {**_spelled(token.token, token.logprob), "top_logprobs": [_spelled(*each) for each in token.top]}
        for token in logprobs
    ]
    return {**choice, "logprobs": {"content": content}} if content else choice


def _spelled(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}


def _usage(generation: Generation) -> dict[str, Any]:
    prompt, completion = generation.prompt_tokens, len(generation.ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.facts.cached_tokens},
    }


def _event(event: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(event)
