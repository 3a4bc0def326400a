"""Routes as configuration: a name under which a worker offers several models, and the rule that chooses among them.

[routes.auto]
policy = "cascade"
first = "small"
then = "large"

A request, an agent or a surface names a route wherever it may name a model. Pure: all inputs of a decision are in the
situation: facts about a turn that are known before its next step is rendered, and the expected duration of a step on a
model. That is learned from earlier steps, and before those, estimated from its size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from agents.toml_file import Name, Table
from inference.frozen import dataclass
from inference.trace import Attribute

# A first guess, only good enough to rank models: on a CPU a token takes about two operations per parameter, at 20
# GFLOPS in prefill, and a tenth of that in decode.
PREFILL_S_PER_PARAMETER, DECODE_S_PER_PARAMETER = 1e-10, 1e-9
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

    prefill_token_s: float
    decode_token_s: float
    load_s: float = 0.0
    answer: float = ANSWER_TOKENS
    _learned: bool = False

    @classmethod
    def of_size(cls, parameters: int) -> Speed:
        """A parameter is assumed to take one byte of the file, for the load time."""
        prefill_token_s, decode_token_s = parameters * PREFILL_S_PER_PARAMETER, parameters * DECODE_S_PER_PARAMETER
        return cls(prefill_token_s, decode_token_s, parameters / LOAD_BYTES_PER_S)

    def learn(self, prefilled: int, prefill_s: float, decoded: int, decode_s: float) -> None:
        """From a step that has ended: the computed tokens and their times."""
        weight = LEARNING if self._learned else 1.0
        if prefilled >= FEW:
            self.prefill_token_s += weight * (prefill_s / prefilled - self.prefill_token_s)
        if decoded >= FEW and decode_s > 0:
            self.decode_token_s += weight * (decode_s / decoded - self.decode_token_s)
            self._learned = True
        self.answer += LEARNING * (decoded - self.answer)

    def cost(self, chars: int, engine_second: float, *, warm: bool, is_loaded: bool, cached_chars: int = 0) -> Cost:
        """Of a step with a prompt of this many characters, of which `cached_chars` need no prefill where they are
        cached.
        """
        uncached = max(0.0, (chars - (cached_chars if warm else 0)) / CHARS_PER_TOKEN)
        seconds = uncached * self.prefill_token_s + self.answer * self.decode_token_s
        seconds += 0.0 if is_loaded else self.load_s
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


# In the words of the bundled model and of larger ones.
REFUSALS = (
    "i am only a small demo model",
    "i can't",
    "i cannot",
    "i can not",
    "i'm sorry",
    "i am sorry",
    "sorry",
    "i'm not sure",
    "i am not sure",
    "i don't know",
    "i do not know",
    "i do not have",
    "i don't have",
    "unfortunately",
    "ich weiß nicht",
    "ich kann nicht",
    "es tut mir leid",
    "leider",
    "je ne sais pas",
    "je ne peux pas",
    "désolé",
    "no lo sé",
    "no puedo",
    "lo siento",
)
# Includes that nothing was found: another model finds no more in the same passages, but the user was not helped.
DECLINED = (*REFUSALS, "i could not find", "i couldn't find", "i was not able to find", "i wasn't able to find")


def begins_like(text: str, beginnings: Iterable[str]) -> bool:
    begins = _folded(tuple(beginnings))
    said = text.lstrip()[: max(map(len, begins), default=0)].casefold()  # never shorter than what it is made of
    return said.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").startswith(begins)


@lru_cache(maxsize=256)  # the lists of all cascades: each answer is compared with one of them
def _folded(beginnings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(beginning.casefold() for beginning in beginnings)


RULES_MAX = 32  # each is evaluated before a step: together some microseconds
EQUALS_MAX = 8  # models, of which the cheapest is chosen
REFUSALS_MAX = 64
# Holding back delays the first visible token: the targets of surfaces begin at 100 ms.
HOLD_TOKENS_MAX, HOLD_MS_MAX = 8, 80.0

# Of models that are all good enough, the one with the lowest expected cost.
Models: TypeAlias = Name | Annotated[list[Name], Field(min_length=1, max_length=EQUALS_MAX)]
Language: TypeAlias = Literal["de", "en", "es", "fr", "it", "nl", "pt", "ar", "he", "ja", "ko", "ru", "zh"]
assert set(Language.__args__) == LANGUAGES  # type: ignore[attr-defined]
Characters: TypeAlias = Annotated[int, Field(ge=0, le=10_000_000)]
LogProbability: TypeAlias = Annotated[float, Field(ge=-100, le=0)]


class Hold(Table):
    """How long an answer of the first model may be held back from its first token on; the lower limit applies."""

    tokens: Annotated[int, Field(ge=1, le=HOLD_TOKENS_MAX)] = HOLD_TOKENS_MAX
    ms: Annotated[float, Field(gt=0, le=HOLD_MS_MAX)] = HOLD_MS_MAX


NO_HOLD = Hold()


class Doubt(Table):
    """When an answer is unsure by its first tokens. Log probabilities are natural logarithms.

    The mean is the score of FrugalGPT and its successors (Chen et al. 2023, arXiv 2305.05176); the minimum finds one
    guessed word among many sure ones (Gupta et al. 2024, arXiv 2404.10136).
    """

    mean_logprob: LogProbability = -0.8
    min_logprob: LogProbability = -3.0
    margin: Annotated[float, Field(ge=0, le=1)] = 0.0  # the minimum probability gap between the two most likely tokens
    refusals: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=100)]], Field(max_length=REFUSALS_MAX)
    ] = Field(default=list(REFUSALS))


class Fixed(Table):
    """Always the same model, or the cheapest of several that are equally good."""

    policy: Literal["fixed"] = "fixed"
    model: Models


class Steps(Table):
    """Steps that call tools on one model, the answer on another. The first tokens of a step show which it is. With
    `queries`, a model rewrites a question that depends on earlier messages into a self-contained one."""

    policy: Literal["steps"]
    tools: Name
    answer: Name
    queries: Name | None = None
    hold: Hold = Hold()


class Conditions(Table):
    """All conditions that are set must hold. Characters, not tokens: rules are evaluated before tokenization."""

    question_chars_max: Characters | None = None
    question_chars_min: Characters | None = None
    prompt_chars_max: Characters | None = None  # of everything but the passages
    prompt_chars_min: Characters | None = None
    languages: Annotated[list[Language], Field(min_length=1)] | None = None
    tools: bool | None = None  # whether any may be called
    documents_max: Annotated[int, Field(ge=0, le=50)] | None = None  # passages that were found
    documents_min: Annotated[int, Field(ge=0, le=50)] | None = None

    def hold(self, situation: Situation) -> bool:
        return (
            _within(situation.question_chars, self.question_chars_min, self.question_chars_max)
            and _within(situation.prompt_chars, self.prompt_chars_min, self.prompt_chars_max)
            and _within(situation.documents, self.documents_min, self.documents_max)
            and (self.tools is None or self.tools == situation.offers_tools)
            and (self.languages is None or situation.language in self.languages)
        )


class Rule(Table):
    when: Conditions
    model: Models


class Rules(Table):
    """The first rule that holds decides."""

    policy: Literal["rules"]
    rules: Annotated[list[Rule], Field(min_length=1, max_length=RULES_MAX)]
    otherwise: Models


class Cascade(Table):
    """The first model begins; the other one takes over if the first is not sure, before any token is sent."""

    policy: Literal["cascade"]
    first: Name
    then: Name
    hold: Hold = Hold()
    doubt: Doubt = Doubt()
    hedge: bool = False  # the other model prefills the prompt meanwhile, if it is idle


Policy: TypeAlias = Annotated[Fixed | Steps | Rules | Cascade, Field(discriminator="policy")]


def names(models: Models) -> tuple[str, ...]:
    return (models,) if isinstance(models, str) else tuple(models)


def named_by(policy: Policy) -> tuple[str, ...]:
    """All models that it may choose. The last one is its best: it answers if there is no choice."""
    match policy:
        case Fixed(model=str() as model):  # nearly always
            return (model,)
        case Fixed():
            found = names(policy.model)
        case Steps():
            found = (*filter(None, [policy.queries]), policy.tools, policy.answer)
        case Rules():
            found = (*(name for rule in policy.rules for name in names(rule.model)), *names(policy.otherwise))
        case Cascade():
            found = (policy.first, policy.then)
    return tuple(dict.fromkeys(reversed(found)))[::-1]


def described(policy: Policy) -> str:
    """For people."""
    match policy:
        case Fixed():
            return " or ".join(names(policy.model))
        case Steps():
            rewrites = f"{policy.queries} rewrites questions, " if policy.queries else ""
            return f"{rewrites}{policy.tools} calls tools, {policy.answer} answers"
        case Rules():
            chosen = [" or ".join(names(rule.model)) for rule in policy.rules]
            return f"{', '.join(chosen)} by {len(chosen)} rules, otherwise {' or '.join(names(policy.otherwise))}"
        case Cascade():
            return f"{policy.first}, then {policy.then} when it is not sure"


def _within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


@dataclass(frozen=True, slots=True)
class Decision:
    """`model` begins the step. With a `fallback` it is on trial: its output is held back until it is clear whether the
    other one has to take over. `doubt` None: any answer is the other model's, and only tool calls are its own.
    """

    model: str
    reason: str
    fallback: str = ""
    hold: Hold = NO_HOLD
    doubt: Doubt | None = None
    hedge: bool = False

    @property
    def is_trial(self) -> bool:
        return bool(self.fallback)


def decide(policy: Policy, situation: Situation) -> Decision:
    match policy:
        case Fixed():
            return _cheapest(names(policy.model), "fixed", situation)
        case Rules():
            for number, rule in enumerate(policy.rules, 1):
                if rule.when.hold(situation):
                    return _cheapest(names(rule.model), f"rule {number}", situation)
            return _cheapest(names(policy.otherwise), "otherwise", situation)
        case Steps():
            return _by_step(policy, situation)
        case Cascade():
            return _cascade(policy, situation)


def _cheapest(models: tuple[str, ...], reason: str, situation: Situation) -> Decision:
    return Decision(situation.cheapest(models), reason if len(models) == 1 else f"{reason}, the cheapest")


def _by_step(policy: Steps, situation: Situation) -> Decision:
    if not situation.offers_tools:
        return Decision(policy.answer, "an answer")
    if policy.tools == policy.answer or _no_dearer(policy.answer, policy.tools, situation):
        return Decision(policy.answer, "no dearer")
    return Decision(policy.tools, "a step with tools", policy.answer, policy.hold)


def _cascade(policy: Cascade, situation: Situation) -> Decision:
    if policy.first == policy.then or _no_dearer(policy.then, policy.first, situation):
        return Decision(policy.then, "no dearer")
    return Decision(policy.first, "cascade", policy.then, policy.hold, policy.doubt, policy.hedge)


def _no_dearer(better: str, model: str, situation: Situation) -> bool:
    """Whether the better model costs no more than the other one here, for example with the conversation in its
    cache.
    """
    known = better in situation.costs and model in situation.costs
    return known and situation.price(better) <= situation.price(model)
