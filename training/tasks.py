"""Small tasks on what the user gives: lists, objects, letters, texts that are pasted, and things to remember."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from training.passages import readings
from training.talk import Exchanges
from training.values import POOLS, Chooser, capital, halves

TERMS, IDEAS, REMEMBERED = map(halves, ("terms.txt", "ideas", "remembered"))
SUGGESTED = 3  # ideas at a time


def _said(choose: Chooser, way: str, answer: str, *following: tuple[str, str]) -> Exchanges:
    """A task, and some of what may follow it: a pool of ways to ask, and the answer."""
    after = choose.some(following, choose.count("followed"))
    return [(way, answer), *((choose.pick(POOLS[pool]), told) for pool, told in after)]


def _list(items: list[Any]) -> list[tuple[str, str]]:
    """What may be asked about a list."""
    told = list(map(str, items))
    return [
        ("reversed", ", ".join(told[::-1])),
        ("as bullets", "\n".join(f"- {each}" for each in told)),
        ("as numbered", "\n".join(f"{at}. {each}" for at, each in enumerate(told, 1))),
        ("as array", json.dumps(items, ensure_ascii=False)),
        ("first one", capital(told[0])),
        ("last one", capital(told[-1])),
        ("counted", f"There are {len(items)}."),
    ]


def _items(choose: Chooser) -> list[str]:
    pool = choose.way("in a list of words")
    return list(dict.fromkeys(choose.word(pool) for _ in range(choose.randint(3, 6))))


def sorting(choose: Chooser) -> Exchanges:
    items: list[Any]
    if choose.chance(0.4):
        items = choose.some(range(1, choose.pick((20, 100, 1000))), choose.randint(3, 7))
        told, kind = sorted(items), "numbers"
    else:
        items = _items(choose)
        told, kind = sorted(items, key=str.lower), "words"
    if choose.chance("down"):
        told, kind = told[::-1], f"{kind} down"
    listed = choose.pick((", ", ", ", ", ", "\n")).join(map(str, items))
    way = choose.way(kind, f"\n{listed}" if "\n" in listed else listed)
    return _said(choose, way, ", ".join(map(str, told)), *_list(told))


def listing(choose: Chooser) -> Exchanges:
    items = _items(choose)
    forms, (_, *made, _, _, _) = ("bullets", "numbered", "array"), _list(items)
    ways = [choose.pick(POOLS[f"list {form}"]) for form in forms]
    way, (_, answer) = choose.pick(list(zip(ways, made, strict=True)))
    return _said(choose, way.format(choose.listed(items)), answer, *_list(items)[4:])


def objects(choose: Chooser) -> Exchanges:
    """An object out of what is said, then with one more field."""
    values = {
        name: choose.randint(18, 80) if name == "age" else choose.word("first" if name == "name" else name)
        for name in choose.some(POOLS["field of an object"], choose.randint(3, 4))
    }
    form = choose.pick(POOLS["told as JSON"])
    *pairs, last = (form.format(name, value) for name, value in values.items())
    first = dict(list(values.items())[:-1])
    made, whole = (json.dumps(each, ensure_ascii=False) for each in (first, values))
    way = choose.pick(POOLS["object"])
    said = [(way.format(choose.listed(pairs)), made)]
    return said + [(choose.way("one field more", last), whole)] * choose.chance(0.5)


def letter(choose: Chooser) -> Exchanges:
    """Asks somebody for something, or tells it; then shorter, more formal or friendlier."""
    kind = "that" if choose.chance("that") else "ask"
    to, matter = choose.fill(choose.pick(POOLS["to"])), choose.fill(choose.pick(POOLS[kind]))
    dear = f"Dear {to}" if to[0].isupper() else "Hello"
    forms = ("way", "letter", "shorter", "formal", "friendly")
    way, answer, *following = (choose.way(f"{kind} {form}", to=to, matter=matter, dear=dear) for form in forms)
    pools = (*forms[2:], "translated")
    return _said(choose, way, answer, *zip(pools, (*following, choose.way("no translation")), strict=True))


def pasted(choose: Chooser) -> Exchanges:
    """A text of the user with questions, answered without a citation: it is no passage."""
    about = choose.pick(readings())
    facts = choose.some(about.facts, choose.pick((1, 2, 2, 3)))
    said = [(choose.pick(fact.questions), f"{fact.answer}.") for fact in facts]
    if choose.chance("pasted_open") and about.open:
        said[-1] = (choose.pick(about.open), choose.way("not told"))
    if choose.chance("summary"):
        told = ". ".join(fact.answer for fact in about.facts[:2])
        said.insert(0, (choose.way("summary"), f"{told}."))
    (asked, answer), *rest = said
    return [(choose.way("paste", text=about.text, asked=asked), answer), *rest]


def remembering(choose: Chooser) -> Exchanges:
    """Two or three things, in one message or one after the other, and what they were."""
    chosen = [choose.fill("|".join(each)).split("|") for each in choose.some(REMEMBERED, choose.pick((2, 2, 3)))]
    if choose.chance(0.6):
        text = choose.pick((". ", " and ", ", ")).join(told for told, *_ in chosen)
        said = [(text, choose.way("noted"))]
    else:
        said = [(told, choose.way("noted")) for told, *_ in chosen]
    if choose.chance(0.3):
        listed = choose.listed([f"that {heard}" for _, _, heard in chosen])
        said.append((choose.way("what was told"), f"You told me {listed}."))
    for _, asked, heard in choose.some(chosen, choose.pick((1, 2))):
        said.append((choose.pick(asked.split(";;")), f"{capital(heard)}."))
    return said


def term(choose: Chooser) -> Exchanges:
    """Explained, then in fewer words, or what it is good for."""
    name, told, short, why = choose.pick(TERMS)
    name = name.split(" ", 1)[-1] if name.startswith(("a ", "an ")) and choose.chance(0.3) else name
    if choose.chance(0.3):
        return _said(choose, choose.way("explain simply", name), short, ("what for", why))
    return _said(choose, choose.way("explain", name), told, ("shorter", short), ("what for", why))


def ideas(choose: Chooser) -> Exchanges:
    what, told = choose.pick(IDEAS)
    found = choose.some(told.split("; "), 2 * SUGGESTED)
    parts = (found[:SUGGESTED], found[SUGGESTED:])
    first, more = ("\n".join(f"{at}. {capital(each)}" for at, each in enumerate(part, 1)) for part in parts)
    said = [(choose.way("suggest", what), first)]
    return said + [(choose.way("more"), more)] * choose.chance(0.5)


def tale(choose: Chooser) -> Exchanges:
    """About what the user names."""
    kind = choose.way("kind of tale")
    one, other = (choose.fill(each) for each in choose.some(POOLS["heroes"], 2))
    first, second = (choose.way(f"a {kind}", capital(each), each) for each in (one, other))
    said = [(choose.way("tell", kind, one), first)]
    return said + [(choose.way("tell another", other), second)] * choose.chance(0.4)


KINDS: tuple[Callable[[Chooser], Exchanges], ...] = (
    *(sorting, listing, objects, letter, letter, letter, pasted, pasted, remembering, remembering),
    *(term, term, term, ideas, tale),
)
