"""Routes as configuration: a name under which a worker offers several models, and the rule that chooses among them.

[routes.auto]
policy = "cascade"
first = "small"
then = "large"

A request, an agent or a surface names a route wherever it may name a model. Pure: all inputs of a decision are in the
situation.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from agents.routing.situation import LANGUAGES, Situation
from agents.toml_file import Name, Table
from inference.frozen import dataclass

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
