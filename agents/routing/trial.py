"""Decides whether the beginning of a model's output is good enough to be sent. Pure: the caller passes tokens and the
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from agents.routing.policy import Decision, Doubt, begins_like
from inference.generation import Sampling, TokenLogprob
from inference.trace import Attribute

# Requested from the engine for each token: a margin is the difference between the two most likely ones.
TOP_LOGPROBS = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """`keeps`: the model continues, and its output is sent."""

    keeps: bool
    reason: str


@dataclass(slots=True)
class Trial:
    """The first tokens of a step. It is over within `hold.tokens` tokens and `hold.ms` from the first one on, or at
    `until_ns`, when the surface's first token is due."""

    decision: Decision
    until_ns: int | None = None
    began_ns: int = 0  # when the first token arrived
    tokens: int = 0
    text: str = ""
    verdict: Verdict | None = None
    held_ms: float = 0.0
    _logprobs: list[float] = field(default_factory=list)
    _margins: list[float] = field(default_factory=list)

    @property
    def ends_ns(self) -> int:
        """When it is over, whatever has arrived by then. Known from its first token on."""
        end = self.began_ns + int(self.decision.hold.ms * 1e6)
        return end if self.until_ns is None else max(self.began_ns, min(end, self.until_ns))

    def feed(self, text: str, tokens: int, logprobs: Sequence[TokenLogprob], now_ns: int) -> Verdict | None:
        """Take new tokens. None while the verdict is open."""
        self.began_ns = self.began_ns or now_ns
        self.tokens += tokens
        self.text += text
        for each in logprobs:
            self._logprobs.append(each.logprob)
            if len(each.top) >= TOP_LOGPROBS:
                self._margins.append(exp(each.top[0][1]) - exp(each.top[1][1]))
        doubt = self.decision.doubt
        if doubt and (reason := self._unsure(doubt)):
            return self._end(Verdict(False, reason), now_ns)
        if self.tokens >= self.decision.hold.tokens or now_ns >= self.ends_ns:
            return self.over(now_ns)
        return None

    def called(self, now_ns: int) -> Verdict | None:
        """The model begins to call a tool. In a `steps` policy that is its task; a cascade continues to check its
        tokens.
        """
        return self._end(Verdict(True, "calls a tool"), now_ns) if self.decision.doubt is None else None

    def said(self, now_ns: int) -> Verdict | None:
        """The model begins to write visible text."""
        return self._end(Verdict(False, "an answer"), now_ns) if self.decision.doubt is None else None

    def broke(self, now_ns: int, reason: str = "breaks its format") -> Verdict:
        """A call that cannot be parsed, or an answer with a visible defect."""
        return self._end(Verdict(False, reason), now_ns)

    def over(self, now_ns: int) -> Verdict:
        """The step has ended, or its time is up. A single token says nothing about the mean: an answer may begin in
        many ways."""
        doubt = self.decision.doubt
        if doubt is None:
            return self._end(Verdict(True, "undecided"), now_ns)
        is_unlikely = len(self._logprobs) > 1 and self.mean_logprob < doubt.mean_logprob
        return self._end(Verdict(not is_unlikely, "unlikely in the mean" if is_unlikely else "sure enough"), now_ns)

    def keep(self, reason: str, now_ns: int) -> Verdict:
        """The other model cannot take over: whatever the verdict, this one continues."""
        self.verdict = None
        return self._end(Verdict(True, reason), now_ns)

    @property
    def mean_logprob(self) -> float:
        return sum(self._logprobs) / len(self._logprobs) if self._logprobs else 0.0

    @property
    def min_logprob(self) -> float:
        return min(self._logprobs, default=0.0)

    @property
    def margin(self) -> float:
        return min(self._margins, default=1.0)

    @property
    def attributes(self) -> dict[str, Attribute]:
        """For a span."""
        facts: dict[str, Attribute] = {
            "trial.tokens": self.tokens,
            "trial.held_ms": round(self.held_ms, 3),
            "trial.kept": self.verdict is not None and self.verdict.keeps,
            "trial.reason": self.verdict.reason if self.verdict else "ended",
        }
        if self._logprobs:
            facts |= {
                "trial.mean_logprob": round(self.mean_logprob, 3),
                "trial.min_logprob": round(self.min_logprob, 3),
            }
        if self._margins:
            facts["trial.margin"] = round(self.margin, 3)
        return facts

    def _unsure(self, doubt: Doubt) -> str:
        """The reason, if a single token or the words show it."""
        if begins_like(self.text, doubt.refusals):
            return "refuses"
        if self.min_logprob < doubt.min_logprob:
            return "an unlikely token"
        if self.margin < doubt.margin:
            return "a narrow choice"
        return ""

    def _end(self, verdict: Verdict, now_ns: int) -> Verdict:
        if self.verdict is None:
            self.verdict = verdict
            self.held_ms = max(0, now_ns - (self.began_ns or now_ns)) / 1e6
        return self.verdict


def judged(sampling: Sampling, decision: Decision) -> Sampling:
    """The sampling of a step on trial, with the log probabilities that are checked."""
    if decision.doubt is None:
        return sampling
    return sampling.with_logprobs(TOP_LOGPROBS)


def wanted(logprobs: tuple[TokenLogprob, ...], top: int | None) -> tuple[TokenLogprob, ...]:
    """Only the log probabilities that the request asks for."""
    if top is None or not logprobs:
        return ()
    return tuple(each.with_top(top) for each in logprobs)
