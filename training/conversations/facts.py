"""Facts about things that do not exist: statements, and the questions that they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from training.conversations import lexicon
from training.conversations.names import Names

GENERAL_SHARE = 0.6  # of those made up have a form that fits anything
KNOWN_SHARE = 0.5  # of the facts have an attribute that is natural for the thing; the rest are made up


@dataclass(frozen=True, slots=True)
class Attribute:
    """{e} is the thing, {E} the same at the start of a sentence, {v} the value."""

    value: Callable[[Names], str]
    statements: Sequence[str]
    questions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence without its full stop."""

    statement: str
    questions: tuple[str, ...]
    value: str


ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = {
    "person": (
        Attribute(
            lambda n: n.pick(lexicon.ROLES),
            ["{e} works as the {v}", "{e} is the {v}", "The role of {e} is {v}"],
            ["What is the role of {e}", "What does {e} do", "What is {e}'s job"],
        ),
        Attribute(
            lambda n: n.city(),
            ["{e} is based in {v}", "{e} works from the {v} office", "The office of {e} is in {v}"],
            ["Where is {e} based", "Which office does {e} work from", "Where does {e} work"],
        ),
        Attribute(
            lambda n: str(n.random.randint(1000, 9999)),
            ["The phone extension of {e} is {v}", "{e} can be reached at extension {v}", "Call {e} on extension {v}"],
            ["What is the phone extension of {e}", "How can I reach {e}", "What is {e}'s extension"],
        ),
        Attribute(
            lambda n: n.pick(lexicon.HOBBIES),
            ["{e} enjoys {v}", "In the evening {e} likes {v}", "The hobby of {e} is {v}"],
            ["What is the hobby of {e}", "What does {e} enjoy", "What does {e} like"],
        ),
        Attribute(
            lambda n: n.date(),
            ["{e} joined on {v}", "{e} started on {v}", "The start date of {e} is {v}"],
            ["When did {e} join", "When did {e} start", "What is the start date of {e}"],
        ),
        Attribute(
            lambda n: n.person(),
            ["{e} reports to {v}", "The manager of {e} is {v}", "{v} manages {e}"],
            ["Who does {e} report to", "Who is the manager of {e}", "Who manages {e}"],
        ),
        Attribute(
            lambda n: n.email(),
            ["The email of {e} is {v}", "{e} reads mail at {v}"],
            ["What is the email of {e}", "What is {e}'s email address"],
        ),
    ),
    "product": (
        Attribute(
            lambda n: f"{n.number()} {n.pick(['euros', 'dollars', 'crowns', 'pounds'])}",
            ["The {e} costs {v}", "The price of the {e} is {v}", "{e} sells for {v}"],
            ["How much does the {e} cost", "What is the price of the {e}", "What does {e} cost"],
        ),
        Attribute(
            lambda n: "{} {}".format(n.decimal(), n.pick(["kg", "grams", "pounds"])),
            ["The {e} weighs {v}", "The weight of the {e} is {v}"],
            ["How much does the {e} weigh", "What is the weight of the {e}", "How heavy is the {e}"],
        ),
        Attribute(
            lambda n: f"{n.number(30)} {n.pick(['months', 'years'])}",
            ["The {e} comes with a warranty of {v}", "The warranty of the {e} lasts {v}"],
            ["How long is the warranty of the {e}", "What warranty does the {e} have"],
        ),
        Attribute(
            lambda n: n.pick(lexicon.COLORS),
            ["The {e} is sold in {v}", "The {e} comes in {v}"],
            ["What color is the {e}", "In which color does the {e} come"],
        ),
        Attribute(
            lambda n: f"{n.number(99)} hours",
            ["The battery of the {e} lasts {v}", "On one charge the {e} runs for {v}"],
            ["How long does the battery of the {e} last", "How long does the {e} run on one charge"],
        ),
        Attribute(
            lambda n: n.date(),
            ["The {e} was released on {v}", "The {e} went on sale on {v}"],
            ["When was the {e} released", "When did the {e} go on sale"],
        ),
        Attribute(
            lambda n: f"hold the {n.pick(['power', 'side', 'reset', 'red', 'menu'])} button for {n.number(30)} seconds",
            ["To reset the {e}, {v}", "If you need to reset the {e}, {v}"],
            ["How do I reset the {e}", "How can the {e} be reset"],
        ),
        Attribute(
            lambda n: n.company(),
            ["The {e} is made by {v}", "{v} makes the {e}"],
            ["Who makes the {e}", "Which company makes the {e}"],
        ),
    ),
    "server": (
        Attribute(
            lambda n: str(n.random.randint(1000, 65000)),
            ["{e} listens on port {v}", "The port of {e} is {v}", "By default {e} uses port {v}"],
            ["Which port does {e} use", "What is the port of {e}", "On which port does {e} listen"],
        ),
        Attribute(
            lambda n: f"{n.number()} {n.pick(['seconds', 'minutes'])}",
            ["The timeout of {e} is {v}", "{e} gives up after {v}"],
            ["What is the timeout of {e}", "After how long does {e} give up"],
        ),
        Attribute(
            lambda n: "/{}/{}.{}".format(
                n.pick(["etc", "opt", "var", "srv"]), n.word(), n.pick(["conf", "yaml", "toml", "json"])
            ),
            ["{e} reads its settings from {v}", "The configuration file of {e} is {v}"],
            ["Where are the settings of {e}", "What is the configuration file of {e}", "Which file does {e} read"],
        ),
        Attribute(
            lambda n: n.person(),
            ["{e} is owned by {v}", "The owner of {e} is {v}", "{v} looks after {e}"],
            ["Who owns {e}", "Who is the owner of {e}", "Who looks after {e}"],
        ),
        Attribute(
            lambda n: f"{n.number(9)}.{n.number(30)}.{n.number(20)}",
            ["{e} runs version {v}", "The current version of {e} is {v}"],
            ["Which version does {e} run", "What is the current version of {e}"],
        ),
        Attribute(
            lambda n: f"run {n.word()} {n.word()}",
            ["To restart {e}, {v}", "If {e} hangs, {v}"],
            ["How do I restart {e}", "What should I do if {e} hangs"],
        ),
        Attribute(
            lambda n: f"{n.number(99)} GB",
            ["{e} needs {v} of memory", "The memory limit of {e} is {v}"],
            ["How much memory does {e} need", "What is the memory limit of {e}"],
        ),
    ),
    "company": (
        Attribute(
            lambda n: str(n.random.randint(1850, 2024)),
            ["{e} was founded in {v}", "The founding year of {e} is {v}"],
            ["When was {e} founded", "In which year was {e} founded"],
        ),
        Attribute(
            lambda n: n.city(),
            ["The headquarters of {e} are in {v}", "{e} is located in {v}"],
            ["Where are the headquarters of {e}", "Where is {e} located"],
        ),
        Attribute(
            lambda n: n.person(),
            ["{e} is led by {v}", "The chief executive of {e} is {v}"],
            ["Who leads {e}", "Who is the chief executive of {e}"],
        ),
        Attribute(
            lambda n: f"{n.number(9000)} people",
            ["{e} employs {v}", "The staff of {e} numbers {v}"],
            ["How many people does {e} employ", "How many people work at {e}"],
        ),
        Attribute(
            lambda n: f"{n.time()} to {n.time()}",
            ["{e} is open from {v}", "The opening hours of {e} are {v}"],
            ["When is {e} open", "What are the opening hours of {e}"],
        ),
        Attribute(
            lambda n: n.word() + " " + n.word(),
            ["{e} is known for {v}", "The main business of {e} is {v}"],
            ["What is {e} known for", "What is the main business of {e}"],
        ),
    ),
    "policy": (
        Attribute(
            lambda n: f"{n.number(60)} days",
            ["{E} may be used for up to {v} per year", "The limit for {e} is {v}"],
            ["What is the limit for {e}", "How many days of {e} are allowed"],
        ),
        Attribute(
            lambda n: n.person(),
            ["{E} must be approved by {v}", "Requests for {e} go to {v}"],
            ["Who approves {e}", "Who handles requests for {e}"],
        ),
        Attribute(
            lambda n: n.date(),
            ["The deadline for {e} is {v}", "{E} must be requested before {v}"],
            ["What is the deadline for {e}", "When must {e} be requested"],
        ),
        Attribute(
            lambda n: f"{n.number()} euros",
            ["{E} is paid up to {v}", "The budget for {e} is {v}"],
            ["How much is paid for {e}", "What is the budget for {e}"],
        ),
        Attribute(
            lambda n: "form " + n.code(),
            ["Use {v} to request {e}", "{E} needs {v}"],
            ["Which form is needed for {e}", "How do I request {e}"],
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Form:
    """{x} is one of the fillers, or any noun; {n} another noun."""

    value: Callable[[Names], str]
    statement: str
    questions: Sequence[str]
    fillers: Sequence[str] = ()


def _any(names: Names) -> str:
    return str(names.value())


def _count(names: Names) -> str:
    return str(names.number())


def _year(names: Names) -> str:
    return str(names.random.randint(1800, 2025))


def _day(names: Names) -> str:
    return names.pick(lexicon.DAYS)


def _colour(names: Names) -> str:
    return names.pick(lexicon.COLORS)


_OF_QUESTIONS = ("What is the {x} of {e}", "Which {x} does {e} have", "Tell me the {x} of {e}")
OF = (
    Form(_any, "The {x} of {e} is {v}", _OF_QUESTIONS),
    Form(_any, "{e} has a {x} of {v}", _OF_QUESTIONS),
    Form(_any, "For {e} the {x} is {v}", _OF_QUESTIONS),
)
GENERAL = (
    Form(_count, "{e} {x}s {v} {n}s", ("How many {n}s does {e} {x}",), lexicon.HOLDING),
    Form(_count, "{e} can {x} {v} {n}s", ("How many {n}s can {e} {x}",), lexicon.HOLDING),
    Form(_count, "{e} has {v} {n}s", ("How many {n}s does {e} have", "What is the number of {n}s of {e}")),
    Form(Names.person, "The {x} of {e} is {v}", ("Who is the {x} of {e}",), lexicon.OFFICES),
    Form(Names.person, "{v} is the {x} of {e}", ("Who is the {x} of {e}",), lexicon.OFFICES),
    Form(Names.time, "{e} {x}s at {v}", ("When does {e} {x}", "At what time does {e} {x}"), lexicon.HAPPENING),
    Form(_day, "{e} {x}s on {v}", ("When does {e} {x}", "On which day does {e} {x}"), lexicon.HAPPENING),
    Form(_day, "{e} is {x} on {v}", ("When is {e} {x}", "On which day is {e} {x}"), lexicon.DONE),
    Form(_year, "{e} was {x} in {v}", ("When was {e} {x}", "In which year was {e} {x}"), lexicon.DONE),
    Form(Names.person, "{e} was {x} by {v}", ("Who {x} {e}", "By whom was {e} {x}"), lexicon.DONE),
    Form(_colour, "The {x} of {e} is {v}", ("What color is the {x} of {e}", "What colour is the {x} of {e}")),
    Form(_count, "A {x} for {e} costs {v} euros", ("What does a {x} for {e} cost", "How much is a {x} for {e}")),
    Form(Names.city, "{e} is {x} in {v}", ("Where is {e} {x}",), ("kept", "stored", "made", "sold", "held", "shown")),
    Form(Names.word, "{e} is used for {v}", ("What is {e} used for",)),
)


def entity(names: Names, kind: str) -> str:
    match kind:
        case "person":
            return names.person()
        case "product":
            return names.product()
        case "company":
            return names.company()
        case "server":
            word, name = names.word(), names.syllables()
            return names.pick(
                (name.capitalize(), name, f"{name}-{word}", f"{word}-{names.word()}", f"the {word} server")
            )
        case _:
            return f"{names.word()} {names.pick(('leave', 'travel', 'training', 'expenses', 'support'))}"


def attributes(names: Names, kind: str, count: int) -> list[Attribute]:
    """Some that are natural for such a thing, the others made up."""
    pool = list(ATTRIBUTES[kind])
    names.random.shuffle(pool)
    known = [pool.pop() for _ in range(count) if pool and names.chance(KNOWN_SHARE)]
    chosen = known + [_made_up(names, kind) for _ in range(count - len(known))]
    return names.random.sample(chosen, count)


def facts(names: Names, kind: str, thing: str, count: int) -> list[Fact]:
    return [fact(names, attribute, thing) for attribute in attributes(names, kind, count)]


def fact(names: Names, attribute: Attribute, thing: str) -> Fact:
    value = attribute.value(names)
    statement = names.pick(attribute.statements).format(e=thing, E=capital(thing), v=value)
    return Fact(capital(statement), tuple(question.format(e=thing) for question in attribute.questions), value)


def _made_up(names: Names, kind: str) -> Attribute:
    """One that no such thing has, or in a form that fits any thing and takes any word."""
    if names.chance(GENERAL_SHARE):
        form = names.pick(GENERAL)
        words = {"{x}": names.pick(form.fillers) if form.fillers else names.noun(), "{n}": names.noun()}
    else:
        form, words = names.pick(OF), {"{x}": names.attribute()}
    words["{e}"] = "the {e}" if kind == "product" else "{e}"
    return Attribute(form.value, [_filled(form.statement, words)], [_filled(each, words) for each in form.questions])


def _filled(text: str, words: Mapping[str, str]) -> str:
    for place, word in words.items():
        text = text.replace(place, word)
    return text


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
