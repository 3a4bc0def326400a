"""From ranked candidates to the few passages that are worth their prefill, each cut down to the sentences relevant to
the question. Pure.

A cut passage is one run of sentences, so that a citation still refers to one exact span of the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.embedding.windows import WINDOW_STRIDE, WINDOW_TOKENS, Windows
from retrieval.candidate import Candidate, ChunkKey, Scored
from retrieval.chunking import passage_title

GAP_CHARS_MAX = 4  # white space between two chunks of one section

Cut: TypeAlias = Callable[[Candidate, int], Candidate | None]  # to at most that many tokens; None if impossible


@dataclass(slots=True)
class Selection:
    """The chosen candidates, best first, and the number left out for each reason."""

    chosen: list[Scored[Candidate]] = field(default_factory=list)
    cut: int = 0  # of the chosen ones
    below_threshold: int = 0
    repeated: int = 0
    over_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(candidate.tokens for _, candidate in self.chosen)


def whole(candidate: Candidate, tokens_max: int) -> Candidate | None:
    return candidate if candidate.tokens <= tokens_max else None


def compress(
    ranked: Sequence[Scored[Candidate]],
    *,
    limit: int,
    score_threshold: float,
    tokens_max: int,
    share_min: float = 0.0,
    cut: Cut = whole,
) -> Selection:
    """At most `limit` candidates with at most `tokens_max` tokens in total, none below the threshold, none twice.

    Candidates with less than `share_min` of the best score of their model are left out. So is one that does not fit
    even when cut, while a shorter one after it may still fit.
    """
    selection = Selection()
    texts: set[str] = set()
    best = _best_by_model(ranked)
    for score, candidate in ranked:
        text = " ".join(candidate.text.split()).casefold()
        if score < max(score_threshold, share_min * best[candidate.model]):
            selection.below_threshold += 1
        elif len(selection.chosen) == limit:
            break
        elif text in texts or any(_overlap(candidate, other) for _, other in selection.chosen):
            selection.repeated += 1
        elif (part := cut(candidate, tokens_max - selection.tokens)) is None:
            selection.over_tokens += 1
        else:
            selection.chosen.append(Scored(score, part))
            selection.cut += part is not candidate
            texts.add(text)
    return selection


def _best_by_model(ranked: Sequence[Scored[Candidate]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for score, candidate in ranked:
        best[candidate.model] = max(score, best.get(candidate.model, score))
    return best


def neighbours(chosen: Sequence[Scored[Candidate]]) -> list[list[Scored[Candidate]]]:
    """Groups of consecutive candidates of one section, in reading order; the best group first.

    A candidate without neighbours forms its own group. A group ranks by the score of its best candidate.
    """
    groups: list[list[Scored[Candidate]]] = []
    for scored in chosen:
        touching = [group for group in groups if _touch(group[-1], scored) or _touch(scored, group[0])]
        if not touching:
            groups.append([scored])
            continue
        merged = sorted([scored, *(one for group in touching for one in group)], key=lambda s: s.candidate.start)
        groups[groups.index(touching[0])] = merged
        for group in touching[1:]:
            groups.remove(group)
    return groups


def _touch(before: Scored[Candidate], after: Scored[Candidate]) -> bool:
    one, other = before.candidate, after.candidate
    return (
        one.key.vector_store_id == other.key.vector_store_id
        and one.key.file_id == other.key.file_id
        and one.key.ordinal + 1 == other.key.ordinal
        and one.heading == other.heading
        and 0 <= other.start - one.end <= GAP_CHARS_MAX
    )


def _overlap(candidate: Candidate, other: Candidate) -> bool:
    return candidate.key.file_id == other.key.file_id and candidate.start < other.end and other.start < candidate.end


CUT_TOKENS_MIN = 40  # shorter passages are whole answers, and cutting them saves nothing
WORD_WEIGHT = 0.3  # of the words relative to the cosine, which differs too little between neighbouring sentences
STEM_CHARS = 5  # words with the same start count as forms of one word
WORD_CHARS_MIN = 3

Scores: TypeAlias = NDArray[np.float32]

_WORD = re.compile(rf"\w{{{WORD_CHARS_MIN},}}")
_BREAK = re.compile(
    r"(?<=[.!?])[\"')\]*_`]*\s+(?=[\"'(\[*_`]*[A-Z0-9])"  # a sentence ends and the next starts with a capital
    r"|\n\s*\n"  # a paragraph ends
    r"|\n(?=[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t])"  # a list item starts
    r"|\n(?=[ \t]*\|)"  # a row starts, of a table that lost its head to the chunk before
)
_WHOLE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1|\Z)"  # fenced code
    r"|^[ \t]*\|[^\n]*\n[ \t]*\|[-:| \t]+\n(?:[ \t]*\|[^\n]*(?:\n|\Z))*"  # a table, with its head
    r"|^[ \t]*\|[^\n]*",  # a row of one without
    re.MULTILINE | re.DOTALL,
)


class Span(NamedTuple):
    start: int
    end: int


def sentences(text: str) -> list[Span]:
    """Splits a text between its sentences, list items, paragraphs and rows, never inside code or a table with its head,
    without which a row of figures says nothing.

    Spans in order, without the white space around them; together they contain every other character of the text.
    """
    wholes = [match.span() for match in _WHOLE.finditer(text)]
    breaks = [
        match.end() for match in _BREAK.finditer(text) if not any(start < match.end() < end for start, end in wholes)
    ]
    bounds = zip([0, *breaks], [*breaks, len(text)], strict=True)
    spans = [_trimmed(text, start, end) for start, end in bounds]
    return [span for span in spans if span.start < span.end]


def _trimmed(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    return Span(start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip()))


@dataclass(frozen=True, slots=True)
class Cutter:
    """Holds the question and the windows of the passages that may be cut; others are left unchanged."""

    query: str
    query_tokens: NDArray[np.float32]  # unit rows, [tokens, dimensions]
    windows: Mapping[ChunkKey, Windows]
    count: Callable[[str], int]
    share_min: float  # share of the best sentence's score that a sentence must have

    def __call__(self, candidate: Candidate, tokens_max: int) -> Candidate | None:
        """The candidate, or the part of it for the model; None if not even its best sentence fits."""
        spans = sentences(candidate.text)
        fits = candidate.tokens <= tokens_max
        if candidate.key not in self.windows or len(spans) < 2 or (fits and candidate.tokens < CUT_TOKENS_MIN):
            return candidate if fits else None
        scores = self._scores(candidate, spans)
        first, last = _run(scores, self.share_min)
        part = self._part(candidate, spans, first, last)
        while part.tokens > tokens_max and first < last:
            first, last = _shorter(scores, first, last)
            part = self._part(candidate, spans, first, last)
        return part if part.tokens <= tokens_max else None

    def _scores(self, candidate: Candidate, spans: Sequence[Span]) -> Scores:
        title_chars = len(passage_title(candidate.title, candidate.heading)) + 1
        nearness = window_scores(self.query_tokens, self.windows[candidate.key])
        return sentence_scores(nearness, title_chars, len(candidate.text), spans) + WORD_WEIGHT * word_shares(
            self.query, [candidate.text[span.start : span.end] for span in spans]
        )

    def _part(self, candidate: Candidate, spans: Sequence[Span], first: int, last: int) -> Candidate:
        if first == 0 and last == len(spans) - 1:
            return candidate
        start, end = spans[first].start, spans[last].end
        text = candidate.text[start:end]
        start, end = candidate.start + start, candidate.start + end
        return replace(candidate, text=text, start=start, end=end, tokens=self.count(text))


def window_scores(query_tokens: NDArray[np.float32], windows: Windows) -> Scores:
    """For each window, the mean of its cosines with the query's tokens."""
    cosines = (windows.vectors.astype(np.float32) @ query_tokens.mean(axis=0)) * windows.scales
    return np.asarray(cosines, np.float32)


def sentence_scores(windows: Scores, title_chars: int, text_chars: int, spans: Sequence[Span]) -> Scores:
    """For each sentence, the best score of the windows centred in it.

    Windows are counted in tokens of title and text, which are assumed to be of equal length: accurate to a few words.
    """
    token_chars = (title_chars + text_chars) / (WINDOW_STRIDE * (len(windows) - 1) + WINDOW_TOKENS)
    middles = np.arange(len(windows), dtype=np.float64) * WINDOW_STRIDE + WINDOW_TOKENS / 2
    centres = np.asarray(middles * token_chars - title_chars, np.float64)
    return np.array([_best_within(windows, centres, span) for span in spans], np.float32)


def word_shares(query: str, texts: Sequence[str]) -> Scores:
    """The share of the query's words that each text contains; the fewer texts contain a word, the more it counts.

    That way words like "the" count little without a stop list.
    """
    asked = _stems(query)
    held = [asked & _stems(text) for text in texts]
    weights = {word: 1 / sum(word in words for words in held) for word in set().union(*held)}
    total = sum(weights.values()) or 1.0
    return np.array([sum(weights[word] for word in words) / total for words in held], np.float32)


def _stems(text: str) -> set[str]:
    return {word[:STEM_CHARS] for word in _WORD.findall(text.casefold())}


def _best_within(windows: Scores, centres: NDArray[np.float64], span: Span) -> np.float32:
    inside = windows[(centres >= span.start) & (centres < span.end)]
    if len(inside):
        return np.float32(inside.max())
    return np.float32(windows[np.abs(centres - (span.start + span.end) / 2).argmin()])


def _run(scores: Scores, share_min: float) -> tuple[int, int]:
    """From the first to the last sentence that is good enough; the best one always is."""
    best = scores.max()
    kept = np.flatnonzero(scores >= min(best, best * share_min))
    return int(kept[0]), int(kept[-1])


def _shorter(scores: Scores, first: int, last: int) -> tuple[int, int]:
    """Drops the worse of the two outer sentences, which is never the best one."""
    if scores[first] < scores[last]:
        return first + 1, last
    return first, last - 1
