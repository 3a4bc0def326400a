"""Conversations without end, mixed from every skill, and the rows of tokens that training takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from training.batches import LEARNT, PROMPT, PROSE, Split
from training.conversations import dialogue
from training.conversations.names import Names
from training.conversations.passages import asked, passages
from training.conversations.prose import Document, documents, whole
from training.conversations.scene import Piece, Scene
from training.conversations.talk import talk, unknown
from training.conversations.tools import DRILL, PAGE, Offered, offered
from training.prose import Prose

ROOM_MIN = 120  # tokens; a shorter rest of a row stays empty
TURN_ROOM = 80  # tokens that a conversation's first turn takes at least
TURNS_MAX = 60
TALK_TURNS_SHARE = 0.15  # after each turn of small talk, that it ends
OWN_SHARE = 0.2  # of the real sentences are of the platform's own documentation
TALK_SHARE = 0.06  # of the turns of any conversation
PROSE_ROWS_SHARE = 0.02
FORGOTTEN_SHARE = 0.12  # of the questions come after one whose passages are gone
FURTHER_SHARE = 0.85  # of the passages are asked about again: more to learn from what was read
FURTHER_MAX = 16
PAGE_TOOLS_SHARE = 0.3  # of the turns with documents and tools
PAGE_UNKNOWN_SHARE = 0.1  # of them ask what neither has
PAGE_PASSAGES_SHARE = 0.6  # of the calls come with passages that say nothing of it
DEFAULT_SYSTEM = "You are a helpful assistant."
SYSTEMS = (
    "You are a concise assistant.",
    "Answer briefly.",
    "You are the assistant of {company}.",
    "You are a friendly helper. Use tools when they help.",
    "Answer from the passages and cite them. If they do not hold the answer, say so.",
    "You answer questions from the user's documents.",
    "You are {name}, a support agent for {company}.",
    "Use the tools for facts. Do not guess.",
    "You are a careful assistant. Cite passages like [1].",
    "Be polite and short.",
    "Today is {date}. You are a helpful assistant.",
    "The user's name is {name}. Be helpful.",
)
KINDS = (
    "built-in",
    "built-in",
    "mixed",
    "invented",
    "invented",
    "invented",
    DRILL,
    DRILL,
    "documents",
    "documents",
    "documents",
    "documents",
    "documents",
    PAGE,
    PAGE,
    PAGE,
)
SMALL_KINDS = ("documents", "documents", DRILL, "talk")  # that fit what is left of a row
SMALL_ROOM = 700


class Generator:
    """Seeded: the same seed writes the same conversations. `split` decides which words may be used."""

    def __init__(self, seed: str, split: Split, prose: Prose) -> None:
        self.names = Names(seed, split, prose.words)
        self.prose: list[Document] = documents(prose.documents, test=split == "test")
        if split == "train" and (own := whole(prose.own)):
            self.prose += own * max(1, round(OWN_SHARE * len(self.prose) / len(own)))

    def scene(self, kind: str) -> tuple[Scene, Offered | None]:
        """A conversation before its first turn: its system text and its tools."""
        tools = None if kind in ("documents", "talk") else offered(self.names, self.prose, kind)
        scene = Scene(tools.schemas if tools else ())
        scene.system(self._system())
        return scene, tools

    def turn(self, scene: Scene, tools: Offered | None, kind: str) -> None:
        """One exchange more, or several that belong together. A drill that is over adds nothing."""
        if kind == PAGE and tools is not None:
            self._page(scene, tools)
        elif kind == "talk" or (kind != DRILL and self.names.chance(TALK_SHARE)):
            talk(self.names, scene)
        elif tools is None:
            self._documents(scene)
        elif kind == DRILL:
            dialogue.drill(self.names, scene, tools)
        else:
            dialogue.turn(self.names, scene, tools)

    def conversation(self, kind: str, turns: int = 1) -> Scene:
        scene, tools = self.scene(kind)
        for _ in range(turns):
            self.turn(scene, tools, kind)
        return scene

    def row(self, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
        """Token ids and what each is, at most `length` of them: conversations until the row is full."""
        if self.names.chance(PROSE_ROWS_SHARE):
            return self._prose(tokenizer, length)
        ids: list[int] = []
        marks: list[int] = []
        while length - len(ids) > ROOM_MIN:
            more, marked = self._grown(tokenizer, length - len(ids))
            ids += more
            marks += marked
        return ids, marks

    def _grown(self, tokenizer: Tokenizer, room: int) -> tuple[list[int], list[int]]:
        """One conversation, with as many turns as there is room for."""
        kind = self.names.pick(KINDS if room > SMALL_ROOM else SMALL_KINDS)
        scene, tools = self.scene(kind)
        ids, marks = encoded(tokenizer, list(scene.pieces()))
        if len(ids) > room - TURN_ROOM:
            kind, (scene, tools) = "talk", self.scene("talk")
            ids, marks = encoded(tokenizer, list(scene.pieces()))
        for _ in range(TURNS_MAX):
            start = len(scene.messages)
            self.turn(scene, tools, kind)
            more, marked = encoded(tokenizer, list(scene.pieces(start)))
            if not more or len(ids) + len(more) > room:
                break
            ids += more
            marks += marked
            if kind == "talk" and self.names.chance(TALK_TURNS_SHARE):
                break
        return ids, marks

    def _system(self) -> str:
        if self.names.chance(0.6):
            return DEFAULT_SYSTEM
        names = self.names
        return names.pick(SYSTEMS).format(company=names.company(), name=names.first_name(), date=names.date())

    def _documents(self, scene: Scene) -> None:
        """A question with passages. Earlier questions of the conversation have lost theirs, as on the platform."""
        names = self.names
        if names.chance(FORGOTTEN_SHARE):
            gone = passages(names, self.prose).ask()
            scene.user(asked(names, gone.question))
            scene.answer(gone.answer, learnt=False)
        found = passages(names, self.prose)
        first = found.ask()
        scene.user(found.prompt(asked(names, first.question)))
        scene.answer(first.answer)
        if not names.chance(FURTHER_SHARE):
            return
        for _ in range(names.random.randint(1, FURTHER_MAX)):
            if found.exhausted:
                return
            further = found.ask()
            scene.user(f"Question: {asked(names, further.question)}")
            scene.answer(further.answer)

    def _page(self, scene: Scene, tools: Offered) -> None:
        """A question about documents beside tools, or something else, of which the passages say nothing."""
        names, chance = self.names, self.names.random.random()
        if chance < TALK_SHARE:
            talk(names, scene)
        elif chance < TALK_SHARE + PAGE_UNKNOWN_SHARE:
            question = passages(names, self.prose).ask(answerable=names.chance(0.5)).question
            unknown(names, scene, names.pick(("", question[0].lower() + question[1:])))
        elif chance < TALK_SHARE + PAGE_UNKNOWN_SHARE + PAGE_TOOLS_SHARE:
            self._distracted(scene, tools)
        else:
            self._documents(scene)

    def _distracted(self, scene: Scene, tools: Offered) -> None:
        """A turn with tools, now and then behind passages that were found all the same."""
        start = len(scene.messages)
        dialogue.turn(self.names, scene, tools)
        if scene.messages[-1].content != dialogue.NO_TOOL and self.names.chance(PAGE_PASSAGES_SHARE):
            self.distract(scene, start)

    def distract(self, scene: Scene, at: int) -> None:
        """Put passages before a request, which say nothing of it."""
        request = scene.messages[at]
        scene.messages[at] = replace(request, content=passages(self.names, self.prose).prompt(request.content))

    def _prose(self, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        while len(ids) < length:
            document = self.names.pick(self.prose)
            text = f"{document.title}\n{'. '.join(document.sentences)}.\n<|endoftext|>"
            ids += tokenizer.encode(text, add_special_tokens=False).ids
        return ids[:length], [PROSE] * length


def encoded(tokenizer: Tokenizer, pieces: list[Piece]) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    marks: list[int] = []
    for encoding, piece in zip(
        tokenizer.encode_batch([piece.text for piece in pieces], add_special_tokens=False), pieces, strict=True
    ):
        ids += encoding.ids
        marks += [LEARNT if piece.learnt else PROMPT] * len(encoding.ids)
    return ids, marks


@dataclass(frozen=True, slots=True)
class Conversations:
    """Generators of what was mined into one file: a source of batches."""

    prose: Path

    def __call__(self, seed: str, split: Split) -> Generator:
        return Generator(seed, split, Prose.read(self.prose))
