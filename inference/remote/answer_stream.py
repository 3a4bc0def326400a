"""An engine's answer as server-sent events: spelled by our engine, read by the worker. Pure.

The events are vLLM's: `choices` with token ids, then the usage with empty choices, then [DONE]; or an `error`. Ours
also have an object "firsttoken", which vLLM's clients ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import orjson

from inference.core import Finish, Forecast, Generation, Miss, Spent, Steps, TokenLogprob

# A step of one answer: some tokens, with twenty alternatives each some kilobytes. Also what may come without an event:
# comments keep a connection alive, of which an hour has some kilobytes.
EVENT_BYTES_MAX = 2**20
# What an engine tells is stored beside what others tell: a number that no column takes would keep all of it out.
COUNT_MAX = 2**31 - 1
MS_MAX = 1e9  # eleven days
NS_MAX = 10**15
DONE = b"[DONE]"
END = b"data: [DONE]\n\n"
TOKEN_ID = "token_id:"  # how some vLLM spell a token that they do not turn into text
_REASONS = {"stop": Finish.STOP, "length": Finish.LENGTH, "deadline": Finish.DEADLINE, "error": Finish.ERROR}
_SPELLED = {finish: reason for reason, finish in _REASONS.items()}


class MalformedStream(ValueError):
    """What came is not what an engine says."""


class Placement(NamedTuple):
    """What our engine tells with the first token: how long the request waited and its prompt took, what the cache
    lacked, and when the token was expected."""

    queue_ms: float
    prefill_ms: float
    miss: Miss | None
    forecast: Forecast | None = None
    reading: Steps | None = None


class StreamUpdate(NamedTuple):
    """What one event says. `counts` are the drafted and accepted tokens, told at the end."""

    ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    finish: Finish | None = None
    aborted: bool = False  # by the engine: nobody here asked for it
    cached: int | None = None
    placement: Placement | None = None
    counts: tuple[int, int] | None = None
    writing: Steps | None = None
    engine_ms: float | None = None  # from the submission there to the last token, told at the end
    spent: Spent | None = None  # of the engine's time, told at the end
    error: tuple[str, int] | None = None  # message and status


class Events:
    """Cuts a body into the data of its events. Raises Malformed for one without end, and for a body without events."""

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
        if rest:  # what comes in small pieces is looked through once, not with each of them
            begin = max(0, len(rest) - 1)
            rest += data
            data = b"" if rest.find(b"\n\n", begin) < 0 else bytes(rest)
        if data:
            *events, left = data.split(b"\n\n")
            self._rest = bytearray(left)
        else:
            events = []
        if len(self._rest) > EVENT_BYTES_MAX:
            raise MalformedStream("an event that does not end")
        said = [event[6:] if event.startswith(b"data: ") else _data(event) for event in events]
        if any(said):
            self._said_nothing = 0
        elif (size := self._said_nothing + sum(map(len, events))) > EVENT_BYTES_MAX:
            raise MalformedStream("a body without events")
        else:
            self._said_nothing = size
        return said


def _data(event: bytes) -> bytes:
    """Of an event with other fields; of a comment, nothing."""
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))


def read(data: bytes, pieces: Sequence[bytes]) -> StreamUpdate:
    """What the data of an event says. Raises Malformed."""
    try:
        return _told(orjson.loads(data), pieces)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise MalformedStream(f"an event that says nothing: {repr(error)[:100]}") from None


def _told(event: Mapping[str, Any], pieces: Sequence[bytes]) -> StreamUpdate:
    choices, own = event.get("choices"), event.get("firsttoken")
    if own is None and choices and "usage" not in event:  # nearly all events
        return _chosen(choices[0], pieces)
    if (error := event.get("error")) is not None:
        code = error.get("code")
        return StreamUpdate(error=(str(error.get("message")), code if isinstance(code, int) else 500))
    said: dict[str, Any] = {}
    if details := (event.get("usage") or {}).get("prompt_tokens_details"):
        said["cached"] = _count(details.get("cached_tokens") or 0)
    if own:
        said |= _own(own, pieces)
    return (_chosen(choices[0], pieces) if choices else StreamUpdate())._replace(**said)


def _own(own: Mapping[str, Any], pieces: Sequence[bytes]) -> dict[str, Any]:
    """What only our engine tells."""
    said: dict[str, Any] = {}
    if "queue_ms" in own:
        said["placement"] = _placement(own, pieces)
    if "drafted" in own:
        drafted = _count(own["drafted"])
        said["counts"] = drafted, min(drafted, _count(own["accepted"]))
        said["writing"] = _steps(own)
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


def _logprob(told: Mapping[str, Any], pieces: Sequence[bytes]) -> TokenLogprob:
    top = [(_piece(each, pieces), _number(each["logprob"])) for each in told.get("top_logprobs") or ()]
    top.sort(key=_likelihood, reverse=True)  # vLLM puts the token that was drawn first
    return TokenLogprob(_piece(told, pieces), _number(told["logprob"]), tuple(top))


def _likelihood(told: tuple[bytes, float]) -> float:
    return told[1]


def _piece(told: Mapping[str, Any], pieces: Sequence[bytes]) -> bytes:
    """The bytes of a token, which are told by themselves or by its id."""
    if (spelled := told.get("bytes")) is not None:
        if not isinstance(spelled, list):  # of a number, as many zeros would be made
            raise MalformedStream("bytes that are none")
        return bytes(spelled)
    id = told.get("token_id")  # of vLLM 0.32; others spell it
    return pieces[_count(int(told["token"].removeprefix(TOKEN_ID)) if id is None else id)]


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
    """None at all from an engine of an earlier version."""
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
    """The first event: where the request was placed, and its first tokens, if there are any."""
    stamps, miss = generation.stamps, generation.miss
    own: dict[str, Any] = {
        "queue_ms": max(0, stamps.admitted_ns - stamps.submitted_ns) / 1e6,
        "prefill_ms": max(0, stamps.prefilled_ns - stamps.admitted_ns) / 1e6,
        "steps": (generation.reading.count, generation.reading.requests),
    }
    if miss is not None:
        own["miss"] = {"cached": miss.cached, "seen": miss.seen, "wanted": miss.wanted, "held": miss.held}
    if (forecast := generation.forecast) is not None:
        own["expected_s"] = (forecast.wait_s, forecast.read_s)
    event = {"request_id": id, "choices": [_choice(ids, logprobs)], "usage": _usage(generation), "firsttoken": own}
    return _event(event)


def spell_likely(ids: Sequence[int], logprobs: Iterable[TokenLogprob]) -> bytes:
    """Tokens with their log probabilities."""
    return _event({"choices": [_choice(ids, logprobs)]})


def spell_end(generation: Generation) -> bytes:
    """Why it ended, the usage, and the end of the stream."""
    finish = generation.finish or Finish.ERROR
    reason = _SPELLED.get(finish, "abort")
    stamps = generation.stamps
    own: dict[str, Any] = {
        "drafted": generation.drafted,
        "accepted": generation.accepted,
        "steps": (generation.writing.count, generation.writing.requests),
        "engine_ms": max(0, stamps.last_token_ns - stamps.submitted_ns) / 1e6,
        "engine_ns": generation.spent.engine_ns,
        "speculation_ns": generation.spent.speculation_ns,
        "finish": _SPELLED.get(finish),
    }
    known = reason if reason != "deadline" else "abort"  # vLLM has no deadlines
    ended = {"choices": [{"index": 0, "token_ids": (), "finish_reason": known}], "firsttoken": own}
    return _event(ended) + _event({"choices": (), "usage": _usage(generation)}) + END


def spell_nothing() -> bytes:
    """The whole answer where nothing had to be computed."""
    return _event({"choices": [{"index": 0, "token_ids": (), "finish_reason": "stop"}]}) + END


def spell_error(message: str, status: int, code: str) -> bytes:
    return _event({"error": {"message": message, "type": code, "param": None, "code": status}}) + END


def _choice(ids: Sequence[int], logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "token_ids": ids}
    content = [
        {**_spelled(told.token, told.logprob), "top_logprobs": [_spelled(*each) for each in told.top]}
        for told in logprobs
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
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


def _event(event: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(event)
