"""From ranked candidates to the few passages that are worth their prefill. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from retrieval.candidate import Candidate, Scored

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
