"""Requests that take several calls, in the ways in which people say them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from training.functions import NAMED, PHRASE, Parameter, Request, Tool, imperative, spaced, worded
from training.joined import ended, joined
from training.values import POOLS, Chooser, Said, Unfit, capital, in_words, lowered

TRIES = 4  # to find a way in which a tool can be asked
ROWS_MAX = 4  # parameters in a table
STORY = re.compile(r"\b(I|[Mm]y|[Ww]e|[Oo]ur)\b|[.?!] |[^.?]$|\(\{")  # or so short: odd with several values
SENTENCES = re.compile(r"[.?!;:] |\n|[^.?]$")
TAIL = re.compile(r" (?=(?:of|in|for|at|from|to|with|on|near|about|after|before|between|under) (?:\w+ ){0,3}?\{)")
VERB = re.compile(r"\b(do|does|did|is|are|was|were|must|can|has|have|I|it|we|you)\b")
LAST = re.compile(r".*\}[\"')\]°%]*", re.DOTALL)
INSIDE = re.compile(r"\b(an?|my|this) $|[=(\"x×]\s?$|\b(and|or|by|times|over) $")  # before a value that stays alone
BESIDE = re.compile(r"^ ?(and|or|by|x|to|-|/|,|;|of|out of)? ?\{|^ ?(=|/|x |\))|^[-:]")  # after such a value
SPANS = ("@date", "@time")  # kinds of which two make a span

Rows = list[dict[str, Said]]
Way = Callable[[Chooser, Tool, int], Request]


def several(choose: Chooser, tool: Tool) -> Request:
    """Two to four calls of one tool. Raises Unfit where the tool cannot be asked so."""
    count = choose.count("calls")
    for _ in range(TRIES):
        with suppress(Unfit):
            return choose.pick(WAYS)(choose, tool, count)
    raise Unfit(tool.name)


def _separate(choose: Chooser, tool: Tool, count: int) -> Request:
    return joined(choose, [tool.ask(choose) for _ in range(count)])


def _listed(choose: Chooser, tool: Tool, count: int) -> Request:
    """`Weather in Rome, Oslo and Lima?`"""
    template = tool.template(choose, _no_story)
    name = choose.pick(_listable(tool, template))
    rows = _rows(choose, tool, template, [name], count)
    text = worded(template, rows[0] | {name: Said(None, _enumerated(choose, _column(rows, name)))})
    text += f" {choose.way('for each')}" if choose.chance("for_each") else ""
    return _for_all(choose, tool, text, rows)


def _respectively(choose: Chooser, tool: Tool, count: int) -> Request:
    """`Tickets for Cats and Hamlet on Monday and Friday, respectively.`"""
    template = tool.template(choose, _no_story)
    varied = choose.some(_listable(tool, template), 2)
    if len(varied) < 2:
        raise Unfit(template)
    rows = _rows(choose, tool, template, varied, count, apart=2)
    text = worded(template, rows[0] | {name: Said(None, choose.listed(_column(rows, name))) for name in varied})
    return _asked(tool, f"{text[:-1]}, respectively{text[-1]}", rows)


def _same(choose: Chooser, tool: Tool, count: int) -> Request:
    """`What is the weather in Rome? And for Oslo?`"""
    template = tool.template(choose)
    name = choose.pick([name for name in _plain(tool, NAMED.findall(template)) if not _quoted(template, name)])
    rows = _rows(choose, tool, template, [name], count)
    further = choose.way("the same", _enumerated(choose, _column(rows[1:], name)))
    return _for_all(choose, tool, f"{ended(worded(template, rows[0]))} {capital(further)}", rows)


def _differing(choose: Chooser, tool: Tool, count: int) -> Request:
    """`Book a table for four at eight. Once more with nine as the time.` All else stays."""
    template = tool.template(choose)
    first = tool.said(choose, NAMED.findall(template))
    names = [name for name, p in tool.parameters.items() if p.sayable and (name in first or not p.inner)]
    names = choose.some(names, choose.pick((1, 1, 2)))
    rows = _rows(choose, tool, "", names, 3 if len(names) > 1 else min(count, 3) + 1)
    known = {name: said.value for name, said in first.items()}
    others = [row for row in rows[:-1] if all(name not in known or known[name] != row[name].value for name in names)]
    if not others:
        raise Unfit(template)
    form = choose.pick(POOLS["differing"])
    text = f"{ended(worded(template, first))} {form.format(_changed(choose, tool, others))}"
    return _asked(tool, text, [first, *(first | row for row in others)])


def _changed(choose: Chooser, tool: Tool, rows: Rows) -> str:
    """What is other in each call: `with 5 as the radius and with 6 as the radius`, `with radius 5 and unit cm`."""
    (name, *more), form = rows[0], choose.pick(POOLS["change"])
    bare = any(tool.parameters[name].alone(row[name]) for row in rows)
    if more or bare:
        parts = [" and ".join(_named(tool.parameters[each], said) for each, said in row.items()) for row in rows]
        parts = parts if bare else [f"with {part}" for part in parts]
    else:
        parts = [form.format(name=spaced(name), words=words) for words in _column(rows, name)]
    return re.sub(r"\ba (?=[aeiou])", "an ", choose.listed(parts))


def _tails(choose: Chooser, tool: Tool, count: int) -> Request:
    """`Book a hotel in Rome for 3 nights and in Oslo for two.` What stands before is said once."""
    template = tool.template(choose, lambda text: not SENTENCES.search(text))
    places = [found.start() for found in TAIL.finditer(template)]
    at = choose.pick([at for at in places if _tail_fits(tool, template[:at], template[at:])])
    last = len(LAST.findall(template)[0])
    tail = template[at:last].lstrip()
    rows = _rows(choose, tool, template, NAMED.findall(tail), min(count, 3))
    said = [worded(tail, row) for row in rows]
    apart = ", and " if any(re.search(r", | and ", each) for each in said) else choose.way("between tails")
    before = "; " if any(", " in each for each in said) else ", "
    text = f"{worded(template[:at], rows[0])} {before.join(said[:-1])}{apart}{said[-1]}{template[last:]}"
    return _for_all(choose, tool, text, rows)


def _tail_fits(tool: Tool, head: str, tail: str) -> bool:
    """Whether it may be said again: after some words, with values of its own, not of lists alone."""
    names = NAMED.findall(tail)
    kinds = {tool.parameters[name].kind.text[0] for name in names}
    within = tail.rpartition("}")[0]
    joint = "," in within or VERB.search(within) or re.search(r" and (?!\{)", within)
    one_only = re.search(r"\ban? \{[\w.]+\} \w", tail)
    own = bool(names) and not one_only and not re.search(r"\}[-\w]", tail) and not set(names) & set(NAMED.findall(head))
    return own and not joint and bool(kinds - {"l", "b"}) and len(head.split()) > 1


def _in_parentheses(choose: Chooser, tool: Tool, count: int) -> Request:
    """`Find hotels in Rome (3 nights) and Oslo (5 nights).`"""
    template = tool.template(choose, _no_story)
    single = [name for name in _listable(tool, template) if tool.parameters[name].kind.text[0] == "@"]
    spare = _spare(tool, NAMED.findall(template))
    if not single or not spare:
        raise Unfit(template)
    name, aside = choose.pick(single), choose.some(spare, choose.pick((1, 1, 2)))
    rows = _rows(choose, tool, template, [name], count)
    words = []
    for row in rows:
        extra = {} if choose.chance("without") else tool.said(choose, aside)
        row |= extra
        beside = ", ".join(_named(tool.parameters[each], extra[each]) for each in extra)
        words.append(f"{row[name].words} ({beside})" if beside else row[name].words)
    return _asked(tool, worded(template, rows[0] | {name: Said(None, choose.listed(words))}), rows)


def _table(choose: Chooser, tool: Tool, count: int) -> Request:
    """The values of each call in a line."""
    names = [p.name for p in tool.outer if p.required]
    spare = [p.name for p in tool.outer if not p.required and p.sayable]
    names += choose.some(spare, choose.pick((0, 1, 1, 2)))
    if not names or len(names) > ROWS_MAX or any(tool.parameters[name].kind.text[0] == "o" for name in names):
        raise Unfit(tool.name)
    rows = [tool.said(choose, names) for _ in range(max(3, count) if choose.chance("long_table") else count)]
    cells = [[_cell(tool.parameters[name], row[name]) for name in names] for row in rows]
    described = imperative(re.split(r"\. ", tool.function.description)[0].rstrip("."))
    made = _lines(choose, [spaced(name) for name in names], cells)
    lead = choose.way("before rows", capital(described), lowered(described), count=in_words(len(rows)))
    return _asked(tool, "\n".join([lead.replace("two times", "twice"), *made]), rows)


def _lines(choose: Chooser, heads: list[str], cells: list[list[str]]) -> list[str]:
    """Of a table: numbered, as points, with bars or with commas."""
    commas = any("," in cell for row in cells for cell in row)
    style = choose.pick(("lines", "lines", "points", "table", "commas"))
    if style == "table" or (style == "commas" and commas):
        return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *cells)]
    if style == "commas":
        return [", ".join(row) for row in (heads, *cells)]
    before, colon = choose.pick(("- ", "* ", "")), choose.pick((" ", ": "))
    labels = [f"{head}{colon}" if len(heads) > 1 else "" for head in heads]
    parts = [("; " if commas else ", ").join(map("".join, zip(labels, row, strict=True))) for row in cells]
    return [f"{f'{at}. ' if style == 'lines' else before}{each}" for at, each in enumerate(parts, 1)]


WAYS: tuple[Way, ...] = (
    *[_separate] * 4,
    *[_listed] * 5,
    _respectively,
    *[_same] * 3,
    *[_differing] * 3,
    *[_tails] * 5,
    *[_in_parentheses] * 2,
    *[_table] * 2,
)


def _rows(choose: Chooser, tool: Tool, template: str, varied: Sequence[str], count: int, apart: int = 1) -> Rows:
    """Values for each call: those of `varied` are others each time (the first `apart` of them in any case), the rest
    of the template the same. Raises Unfit where there are not enough of them."""
    fixed = tool.said(choose, [name for name in NAMED.findall(template) if name not in varied])
    rows: Rows = []
    for _ in range(6 * count):
        row = fixed | tool.said(choose, varied)
        if all(row[name].value != each[name].value for each in rows for name in varied[:apart]):
            rows.append(row)
        if len(rows) == count:
            break
    if not varied or len(rows) < 2:
        raise Unfit(template)
    return rows


def _column(rows: Rows, name: str) -> list[str]:
    return [row[name].words for row in rows]


def _asked(tool: Tool, text: str, rows: Rows) -> Request:
    return Request(text, [tool.call(row) for row in rows])


def _no_story(template: str) -> bool:
    return not STORY.search(template)


def _listable(tool: Tool, template: str) -> list[str]:
    """Parameters in whose places several values may stand: not those beside others of their sort, as in `3 by 4`."""
    names = NAMED.findall(template)
    kept = []
    for each in NAMED.finditer(template):
        before, after = template[: each.start()], template[each.end() :]
        span = re.search(r"\{[\w.]+\} (to|until|till|-) $", before) or re.match(r" (to|until|till) \{", after)
        kind = tool.parameters[each[1]].kind.text
        joint = INSIDE.search(before) or BESIDE.search(after) or re.search(r"[\w.]+\}[,;:]? ?$", before)
        spanned = span and (kind[0] in "inp" or kind in SPANS)
        if not joint and not spanned and names.count(each[1]) == 1 and kind[0] not in "lbo":
            kept.append(each[1])
    return kept


def _quoted(template: str, name: str) -> bool:
    """Whether it stands in quotes, or as the verb at the beginning."""
    return f'"{{{name}}}' in template or template.startswith(f"{{{name}}} the ")


def _plain(tool: Tool, used: Sequence[str]) -> list[str]:
    """Parameters of which a value alone says which it is for."""
    used = [name for name in used if not any(map(PHRASE.match, tool.parameters[name].kind.words))]
    kinds = [re.sub(r"^[inp].*", "number", tool.parameters[name].kind.text) for name in used]
    return [name for name, kind in zip(used, kinds, strict=True) if kinds.count(kind) == 1 and kind[0] not in "lbo"]


def _spare(tool: Tool, used: Iterable[str]) -> list[str]:
    return [p.name for p in tool.outer if p.name not in used and p.sayable]


def _named(parameter: Parameter, said: Said) -> str:
    """A value with the name of its parameter, where it does not speak for itself."""
    kind, name = parameter.kind.text, spaced(parameter.name)
    if kind.startswith("b(") or (kind[0] == "e" and "=" in kind):
        return said.words
    if kind[0] == "i" and re.fullmatch(r"[a-z]+[^s]s", name):
        return f"{said.words} {name}"
    return f"{name} {said.words}"


def _cell(parameter: Parameter, said: Said) -> str:
    return ("yes" if said.value else "no") if parameter.kind.text[0] == "b" else said.words


def _enumerated(choose: Chooser, words: Sequence[str]) -> str:
    if len(words) == 1 or not choose.chance("other_list"):
        return choose.listed(words)
    return choose.way("enumerated", ", ".join(words[:-1]), words[-1])


def _for_all(choose: Chooser, tool: Tool, text: str, rows: Rows) -> Request:
    """Now and then with another value that is said once for all calls."""
    spare = _spare(tool, rows[0])
    if spare and choose.chance("for_all"):
        name = choose.pick(spare)
        more = tool.said(choose, [name])
        words = more[name].words
        if tool.parameters[name].alone(more[name]):
            told = f"{words}, {choose.way('each of them')}."
        else:
            told = choose.way("told of all", name=spaced(name), words=words)
        text = f"{ended(text)} {capital(told)}"
        rows = [row | more for row in rows]
    return _asked(tool, text, rows)
