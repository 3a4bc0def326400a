"""What needs neither a tool nor a document: small talk, facts, general questions, and what nobody here knows."""

from __future__ import annotations

import re

from training.values import DATA, Chooser, capital, lines

PAGE_ONLY, CLIENT_ONLY = "* ", "+ "  # begin a line that holds for the tools of the server, or of a client, alone
ASKS = re.compile(r"(who|what|which|how|do|does|did|can|are|is|was|were|where|when|why|will|should)\b", re.IGNORECASE)
FOLLOWING = ("and ", "what about ")  # begin the ways to ask that follow another question of the same table
SLOPPY_CHARACTERS = 70

Texts = tuple[list[str], list[str]]  # ways to say it, ways to answer
Exchanges = list[tuple[str, str]]  # what the user says, and the answer


class Talk:
    def __init__(self) -> None:
        small = lines("small_talk.txt")
        self.client = [_halves(line.removeprefix(CLIENT_ONLY)) for line in small if not line.startswith(PAGE_ONLY)]
        self.page = [_halves(line.removeprefix(PAGE_ONLY)) for line in small if not line.startswith(CLIENT_ONLY)]
        self.tables = [_table(line) for line in lines("world.txt")]
        self.world = [asked for table in self.tables for asked in table]
        self.general, self.unknown = ([*map(_halves, lines(f"{name}.txt"))] for name in ("general", "unknown"))
        self.dialogues = [each.splitlines() for each in (DATA / "dialogues.txt").read_text().split("\n\n")]

    def exchange(self, choose: Chooser, *, page: bool) -> tuple[str, str]:
        """What is said, and its answer. `page`: the tools of the server are the only ones."""
        known = [self.page if page else self.client, self.world, self.general]
        texts, answers = choose.pick(choose.pick([*known, *known, self.unknown if page else self.general]))
        return _typed(choose, choose.pick([t for t in texts if not t.startswith(FOLLOWING)])), choose.pick(answers)

    def dialogue(self, choose: Chooser) -> Exchanges:
        """Two to four exchanges as on the chat page; the later ones refer to those before."""
        kind = choose.random()
        if kind < 0.2:
            return self._same_again(choose)
        if kind < 0.3:
            text, answer = self.exchange(choose, page=True)
            return [(text, answer), (_typed(choose, choose.way("recalling")), f'You asked: "{text}"')]
        picked = "\n".join(choose.pick(line.split("|")) for line in choose.pick(self.dialogues))
        told = [line.replace("\\n", "\n") for line in choose.fill(picked).split("\n")]
        return [(_typed(choose, text), answer) for text, answer in zip(told[::2], told[1::2], strict=True)]

    def _same_again(self, choose: Chooser) -> Exchanges:
        """The question of a table about one thing, then about others."""
        table = choose.pick([table for table in self.tables if table[0][0][-1].startswith(FOLLOWING)])
        told: Exchanges = []
        for texts, answers in choose.some(table, choose.pick((2, 2, 3))):
            text = choose.pick([text for text in texts if text.startswith(FOLLOWING) == bool(told)])
            told.append((_typed(choose, text), answers[0]))
        return told


def _halves(line: str) -> Texts:
    texts, answers = line.replace("\\n", "\n").split(" => ")
    return texts.split("|"), answers.split("|")


def _table(line: str) -> list[Texts]:
    """A line is `questions => answer => a:b;a:b`."""
    questions, answer, pairs = line.split(" => ")
    told = [(a, answer.replace("{a}", a).replace("{b}", b)) for a, b in (pair.split(":") for pair in pairs.split(";"))]
    return [(questions.replace("{a}", a).split("|"), [capital(text)]) for a, text in told]


def _typed(choose: Chooser, text: str) -> str:
    """Small talk is listed without capitals and full stops; people write some of them, and some write none at all."""
    if len(text) < SLOPPY_CHARACTERS and choose.chance("sloppy"):
        return text.lower().rstrip("?.")
    if text[0].islower() and choose.chance(0.7):
        text = capital(text)
    if text[-1].isalnum() and choose.chance(0.6):
        text += "?" if ASKS.match(text) else choose.pick((".", "!", ""))
    return text
