"""What needs neither a tool nor a document: small talk, well-known facts, and general questions in short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from training.values import DATA, Chooser

PAGE_ONLY = "* "  # begins a line that is wrong where a client brings tools of its own


class Talk:
    def __init__(self) -> None:
        lines = (DATA / "small_talk.txt").read_text().splitlines()
        self.small = [_halves(line) for line in lines if not line.startswith(PAGE_ONLY)]
        self.page = [_halves(line.removeprefix(PAGE_ONLY)) for line in lines]
        self.world = list(_world(DATA / "world.txt"))
        self.general = [_halves(line) for line in (DATA / "general.txt").read_text().splitlines()]

    def exchange(self, choose: Chooser, *, page: bool) -> tuple[str, str]:
        """What is said, and its answer. `page`: the tools of the server are the only ones."""
        small = self.page if page else self.small
        texts, answers = choose.pick(choose.pick((small, small, self.world, self.general)))
        return _typed(choose, choose.pick(texts)), choose.pick(answers)


def _halves(line: str) -> tuple[list[str], list[str]]:
    texts, answers = line.split(" => ")
    return texts.split("|"), answers.split("|")


def _world(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """A line is `questions => answer => a:b;a:b`."""
    for line in path.read_text().splitlines():
        questions, answer, pairs = line.split(" => ")
        for pair in pairs.split(";"):
            a, b = pair.split(":")
            texts = [question.replace("{a}", a) for question in questions.split("|")]
            told = answer.replace("{a}", a).replace("{b}", b)
            yield texts, [told[0].upper() + told[1:]]


def _typed(choose: Chooser, text: str) -> str:
    """Small talk is listed without capitals and full stops; people write some of them."""
    if text[0].islower() and choose.chance(0.7):
        text = text[0].upper() + text[1:]
    asks = text.split()[0].lower() in (
        "who",
        "what",
        "which",
        "how",
        "do",
        "does",
        "can",
        "are",
        "where",
        "will",
        "is",
        "what's",
    )
    if text[-1] not in "?.!" and choose.chance(0.6):
        text += "?" if asks else choose.pick((".", "!", ""))
    return text
