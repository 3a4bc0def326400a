"""Small tasks on what the user gives: lists, objects, letters, texts that are pasted, and things to remember."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from training import readings
from training.values import Chooser, capital, lines, sections

Said = list[tuple[str, str]]  # what the user says, and the answer

ASKED = sections("tasks.txt")
TERMS = [line.split(" => ") for line in lines("terms.txt")]
IDEAS = [line.split(" => ") for line in ASKED["ideas"]]
REMEMBERED = [line.split(" => ") for line in ASKED["remembered"]]
LISTED = (
    *("fruit", "vegetable", "animal", "capitalcity", "country"),
    *("first", "colour", "instrument", "sport", "language"),
)
FIELDS = ("name", "age", "city", "job", "email", "colour", "language", "country")
FOLLOWED = (0, 1, 1, 2)  # times
SUGGESTED = 3  # ideas at a time
DOWN_SHARE = 0.15  # of the lists are sorted the other way
THAT_SHARE = 0.35  # of the letters tell something; the others ask for it
OPEN_SHARE, SUMMARY_SHARE = 0.15, 0.3  # of the questions about a text that is pasted


def _said(choose: Chooser, way: str, answer: str, *following: tuple[str, str]) -> Said:
    """A task, and some of what may follow it: a section of ways to ask, and the answer."""
    after = choose.some(following, choose.pick(FOLLOWED))
    return [(way, answer), *((choose.pick(ASKED[section]), told) for section, told in after)]


def _list(items: list[Any]) -> tuple[tuple[str, str], ...]:
    """What may be asked about a list."""
    told = list(map(str, items))
    return (
        ("reversed", ", ".join(told[::-1])),
        ("as bullets", "\n".join(f"- {each}" for each in told)),
        ("as numbered", "\n".join(f"{at}. {each}" for at, each in enumerate(told, 1))),
        ("as array", json.dumps(items, ensure_ascii=False)),
        ("first", capital(told[0])),
        ("last", capital(told[-1])),
        ("counted", f"There are {len(items)}."),
    )


def _items(choose: Chooser) -> list[str]:
    pool = choose.pick(LISTED)
    return list(dict.fromkeys(choose.word(pool) for _ in range(choose.between(3, 6))))


def sorting(choose: Chooser) -> Said:
    items: list[Any]
    if choose.chance(0.4):
        items = choose.some(range(1, choose.pick((20, 100, 1000))), choose.between(3, 7))
        told, kind = sorted(items), "numbers"
    else:
        items = _items(choose)
        told, kind = sorted(items, key=str.lower), "words"
    if choose.chance(DOWN_SHARE):
        told, kind = told[::-1], f"{kind} down"
    listed = choose.pick((", ", ", ", ", ", "\n")).join(map(str, items))
    way = choose.pick(ASKED[kind]).format(f"\n{listed}" if "\n" in listed else listed)
    return _said(choose, way, ", ".join(map(str, told)), *_list(told))


def listing(choose: Chooser) -> Said:
    items = _items(choose)
    bullets, numbered, array = (choose.pick(ASKED[f"list {kind}"]) for kind in ("bullets", "numbered", "array"))
    _, made, counted, told, *_ = _list(items)
    way, (_, answer) = choose.pick(((bullets, made), (numbered, counted), (array, told)))
    return _said(choose, way.format(choose.listed(items)), answer, *_list(items)[4:])


def objects(choose: Chooser) -> Said:
    """An object out of what is said, then with one more field."""
    values = {
        name: choose.between(18, 80) if name == "age" else choose.word("first" if name == "name" else name)
        for name in choose.some(FIELDS, choose.between(3, 4))
    }
    form = choose.pick(("{} {}", '{} "{}"', "{}: {}", "{} = {}"))
    *pairs, last = (form.format(name, value) for name, value in values.items())
    first = dict(list(values.items())[:-1])
    made, whole = (json.dumps(each, ensure_ascii=False) for each in (first, values))
    said = [(choose.pick(ASKED["object"]).format(choose.listed(pairs)), made)]
    return said + [(choose.pick(ASKED["field"]).format(last), whole)] * choose.chance(0.5)


def letter(choose: Chooser) -> Said:
    """Asks somebody for something, or tells it; then shorter, more formal or friendlier."""
    kind = "that" if choose.chance(THAT_SHARE) else "ask"
    to, matter = choose.fill(choose.pick(ASKED["to"])), choose.fill(choose.pick(ASKED[kind]))
    known = {"to": to, "matter": matter, "dear": f"Dear {to}" if to[0].isupper() else "Hello"}
    way, answer, *following = (
        choose.pick(ASKED[f"{kind} {section}"]).format(**known).replace("\\n", "\n")
        for section in ("way", "letter", "shorter", "formal", "friendly")
    )
    translated = choose.pick(ASKED["no translation"])
    sections = ("shorter", "formal", "friendly", "translated")
    return _said(choose, way, answer, *zip(sections, (*following, translated), strict=True))


def pasted(choose: Chooser) -> Said:
    """A text of the user with questions, answered without a citation: it is no passage."""
    about = choose.pick(readings.read())
    text, facts = about.text, choose.some(about.facts, choose.pick((1, 2, 2, 3)))
    said = [(choose.pick(fact.questions), f"{fact.answer}.") for fact in facts]
    if choose.chance(OPEN_SHARE) and about.open:
        said[-1] = (choose.pick(about.open), choose.pick(ASKED["not told"]))
    if choose.chance(SUMMARY_SHARE):
        told = ". ".join(fact.answer for fact in about.facts[:2])
        said.insert(0, (choose.pick(ASKED["summary"]), f"{told}."))
    (asked, answer), *rest = said
    return [(choose.pick(ASKED["paste"]).replace("\\n", "\n").format(text=text, asked=asked), answer), *rest]


def remembering(choose: Chooser) -> Said:
    """Two or three things, in one message or one after the other, and what they were."""
    chosen = [choose.fill("|".join(each)).split("|") for each in choose.some(REMEMBERED, choose.pick((2, 2, 3)))]
    if choose.chance(0.6):
        text = choose.pick((". ", " and ", ", ")).join(told for told, *_ in chosen)
        said = [(text, choose.pick(ASKED["noted"]))]
    else:
        said = [(told, choose.pick(ASKED["noted"])) for told, *_ in chosen]
    if choose.chance(0.3):
        listed = choose.listed([f"that {heard}" for _, _, heard in chosen])
        said.append((choose.pick(ASKED["what was told"]), f"You told me {listed}."))
    for _, asked, heard in choose.some(chosen, choose.pick((1, 2))):
        said.append((choose.pick(asked.split(";;")), f"{capital(heard)}."))
    return said


def term(choose: Chooser) -> Said:
    """Explained, then in fewer words, or what it is good for."""
    name, told, short, why = choose.pick(TERMS)
    name = name.split(" ", 1)[-1] if name.startswith(("a ", "an ")) and choose.chance(0.3) else name
    simple = choose.chance(0.3)
    way = choose.pick(ASKED["explain simply" if simple else "explain"]).format(name)
    return _said(choose, way, short if simple else told, *() if simple else [("shorter", short)], ("what for", why))


def ideas(choose: Chooser) -> Said:
    what, told = choose.pick(IDEAS)
    found = choose.some(told.split("; "), 2 * SUGGESTED)
    parts = (found[:SUGGESTED], found[SUGGESTED:])
    first, more = ("\n".join(f"{at}. {capital(each)}" for at, each in enumerate(part, 1)) for part in parts)
    said = [(choose.pick(ASKED["suggest"]).format(what), first)]
    return said + [(choose.pick(ASKED["more"]), more)] * choose.chance(0.5)


def tale(choose: Chooser) -> Said:
    """About what the user names."""
    kind = choose.pick(("story", "poem", "haiku", "limerick"))
    known = [choose.fill(each) for each in choose.some(ASKED["heroes"], 2)]
    first, second = (choose.pick(ASKED[f"a {kind}"]).replace("\\n", "\n").format(capital(each), each) for each in known)
    said = [(choose.pick(ASKED["tell"]).format(kind, known[0]), first)]
    return said + [(choose.pick(ASKED["tell another"]).format(known[1]), second)] * choose.chance(0.4)


KINDS: tuple[Callable[[Chooser], Said], ...] = (
    *(sorting, listing, objects, letter, letter, letter, pasted, pasted, remembering, remembering),
    *(term, term, term, ideas, tale),
)
