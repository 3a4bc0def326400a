"""The inputs of a route: facts about a turn that are known before its next step is rendered, and the expected duration
of a step on a model. That is learned from earlier steps, and before those, estimated from its size. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inference.trace import Attribute

# A first guess, only good enough to rank models: on a CPU a token takes about two operations per parameter, at 20
# GFLOPS in prefill, and a tenth of that in decode.
READ_S_PER_PARAMETER, WRITE_S_PER_PARAMETER = 1e-10, 1e-9
LEARNING = 0.1  # weight of the newest step
CHARS_PER_TOKEN = 4  # in the usual languages, within a third
ANSWER_TOKENS = 100.0  # of the first answer; after that it is learned
FEW = 8  # tokens: the time of fewer mostly reflects other load on the machine
LOAD_BYTES_PER_S = 1e9  # of weights that have to be read from a disk first


@dataclass(frozen=True, slots=True)
class Cost:
    """The expected duration of a step on a model, and its cost in the operator's unit. `warm`: what precedes the
    question is in its prompt cache."""

    seconds: float
    price: float
    warm: bool = False
    is_loaded: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """`guess` returns the language of the question: it is called only by rules that need it."""

    question_chars: int = 0
    prompt_chars: int = 0
    documents: int = 0
    offers_tools: bool = False  # some may still be called
    step: int = 0
    guess: Callable[[], str] = field(default=str, compare=False)
    costs: Mapping[str, Cost] = field(default_factory=dict)  # by model

    @property
    def language(self) -> str:
        return self.guess()

    def cheapest(self, models: tuple[str, ...]) -> str:
        """The first of the cheapest. A model of unknown cost counts as free: it must be tried to be known."""
        return min(models, key=self.price)

    def price(self, model: str) -> float:
        cost = self.costs.get(model)
        return cost.price if cost else 0.0

    @property
    def attributes(self) -> dict[str, Attribute]:
        """For a span."""
        facts: dict[str, Attribute] = {
            "step": self.step,
            "question_chars": self.question_chars,
            "prompt_chars": self.prompt_chars,
            "documents": self.documents,
            "tools": self.offers_tools,
        }
        for model, cost in self.costs.items():
            facts |= {f"cost.{model}": round(cost.price, 6), f"warm.{model}": cost.warm}
        return facts


@dataclass(slots=True)
class Speed:
    """Seconds per prefilled token, and per decoded token; `answer` is the mean number of decoded tokens."""

    read_s: float
    write_s: float
    load_s: float = 0.0
    answer: float = ANSWER_TOKENS
    _learned: bool = False

    @classmethod
    def of_size(cls, parameters: int) -> Speed:
        """A parameter is assumed to take one byte of the file, for the load time."""
        return cls(parameters * READ_S_PER_PARAMETER, parameters * WRITE_S_PER_PARAMETER, parameters / LOAD_BYTES_PER_S)

    def learn(self, read: int, read_s: float, written: int, write_s: float) -> None:
        """From a step that has ended: the computed tokens and their times."""
        weight = LEARNING if self._learned else 1.0
        if read >= FEW:
            self.read_s += weight * (read_s / read - self.read_s)
        if written >= FEW and write_s > 0:
            self.write_s += weight * (write_s / written - self.write_s)
            self._learned = True
        self.answer += LEARNING * (written - self.answer)

    def cost(self, chars: int, engine_second: float, *, warm: bool, is_loaded: bool, cached_chars: int = 0) -> Cost:
        """Of a step with a prompt of this many characters, of which `cached_chars` need no prefill where they are
        cached.
        """
        read = (chars - (cached_chars if warm else 0)) / CHARS_PER_TOKEN
        seconds = max(0.0, read) * self.read_s + self.answer * self.write_s + (0.0 if is_loaded else self.load_s)
        return Cost(seconds, seconds * engine_second, warm, is_loaded)


# The language of a question is guessed by its script and its most frequent short words: some microseconds, no model. It
# is for rules that choose a model, where a wrong guess costs a better or worse model and nothing else; a question of a
# few words often remains unidentified.
CHARS_MAX = 400  # two sentences are enough
FREQUENT: Mapping[str, str] = {
    "de": "der die das und ist ich nicht ein eine wie was wir sie mit für auf kann wo wer den dem im",
    "en": "the and is of to in what how i you are my can do does a an it that where who for with",
    "es": "el la los las y es que en un una cómo qué cuál mi por para con está dónde quién del",
    "fr": "le la les et est je que qui un une comment quel quelle mon pour avec dans où des du ce",
    "it": "il lo la gli e è che di un una come cosa quale mio per con dove chi della sono nel",
    "nl": "de het een en is ik niet wat hoe mijn van voor met waar wie kan op zijn dat je",
    "pt": "o a os as e é que em um uma como qual meu por para com está onde quem do da não",
}
WORDS = {name: frozenset(words.split()) for name, words in FREQUENT.items()}
# The first script that a question has letters of; kana before the signs that Japanese shares with Chinese.
SCRIPTS = (
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\uac00-\ud7af]")),
    ("zh", re.compile("[\u4e00-\u9fff]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
    ("ar", re.compile("[\u0600-\u06ff]")),
    ("he", re.compile("[\u0590-\u05ff]")),
)
LANGUAGES = frozenset({*WORDS, *(name for name, _ in SCRIPTS)})
_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str:
    """An ISO 639-1 code, or empty if there is no evidence, or two languages match equally."""
    beginning = text[:CHARS_MAX].casefold()
    if not beginning.isascii():
        for name, script in SCRIPTS:
            if script.search(beginning):
                return name
    said = _WORD.findall(beginning)
    counts = Counter({name: sum(word in words for word in said) for name, words in WORDS.items()}).most_common(2)
    (best, most), (_, second) = counts
    return best if most > second else ""
