"""Requests that take several calls, in the ways in which people say them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from training.functions import NAMED, PHRASE, Parameter, Request, Tool, alone, imperative, spaced, worded
from training.joined import ended, joined
from training.values import POOLS, SMALL, Chooser, Said, capital, lowered

COUNTS = (2, 2, 2, 3, 3, 4)
TRIES = 4  # to find a way in which a tool can be asked
FOR_EACH_SHARE = 0.15  # of the lists of values come with words that each is meant
OTHER_LIST_SHARE = 0.3  # of the lists of values are joined by other words than "and"
LONG_TABLE_SHARE = 0.5  # of the tables have three lines or more
FOR_ALL_SHARE = 0.15  # of the requests say another value that all calls share
WITHOUT_SHARE = 0.2  # of the values in parentheses are missing
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
Way = Callable[[Chooser, Tool, int], Request | None]


def several(choose: Chooser, tool: Tool) -> Request | None:
    """Two to four calls of one tool. None where the tool cannot be asked so."""
    count = choose.pick(COUNTS)
    for _ in range(TRIES):
        made = choose.pick(WAYS)(choose, tool, count)
        if made is not None:
            return made
    return None


def _separate(choose: Chooser, tool: Tool, count: int) -> Request | None:
    made = [request for _ in range(count) if (request := tool.ask(choose))]
    return joined(choose, made) if made else None


def _listed(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """`Weather in Rome, Oslo and Lima?`"""
    template = tool.template(choose, fits=lambda text: not STORY.search(text))
    single = _listable(tool, template)
    if template is None or not single:
        return None
    name, names = choose.pick(single), NAMED.findall(template)
    rows = _rows(choose, tool, names, [name], count)
    if rows is None:
        return None
    text = worded(template, rows[0] | {name: Said(None, _enumerated(choose, [row[name].words for row in rows]))})
    text += f" {choose.pick(POOLS['for each'])}" if choose.chance(FOR_EACH_SHARE) else ""
    return _for_all(choose, tool, text, rows)


def _respectively(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """`Tickets for Cats and Hamlet on Monday and Friday, respectively.`"""
    template = tool.template(choose, fits=lambda text: not STORY.search(text))
    varied = choose.some(_listable(tool, template), 2)
    if template is None or len(varied) < 2:
        return None
    rows = _rows(choose, tool, NAMED.findall(template), varied, count, apart=2)
    if rows is None:
        return None
    lists = {name: Said(None, choose.listed([row[name].words for row in rows])) for name in varied}
    text = worded(template, rows[0] | lists)
    return Request(f"{text[:-1]}, respectively{text[-1]}", [tool.call(row) for row in rows])


def _same(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """`What is the weather in Rome? And for Oslo?`"""
    template = tool.template(choose)
    plain = [name for name in _plain(tool, NAMED.findall(template or "")) if not _quoted(template or "", name)]
    if template is None or not plain:
        return None
    name = choose.pick(plain)
    rows = _rows(choose, tool, NAMED.findall(template), [name], count)
    if rows is None:
        return None
    further = _enumerated(choose, [row[name].words for row in rows[1:]])
    text = f"{ended(worded(template, rows[0]))} {capital(choose.pick(POOLS['the same']).format(further))}"
    return _for_all(choose, tool, text, rows)


def _differing(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """`Book a table for four at eight. Once more with nine as the time.` All else stays."""
    template = tool.template(choose)
    if template is None:
        return None
    first = tool.said(choose, NAMED.findall(template))
    names = [name for name, p in tool.parameters.items() if _sayable(p) and (name in first or "." not in name)]
    names = choose.some(names, choose.pick((1, 1, 2)))
    count = 2 if len(names) > 1 else min(count, 3)
    rows = _rows(choose, tool, names, names, count + 1)
    if not names or rows is None:
        return None
    others = [row for row in rows[:-1] if all(_new(first, row, name) for name in names)]
    if not others:
        return None
    text = f"{ended(worded(template, first))} {choose.pick(POOLS['differing']).format(_changed(choose, tool, others))}"
    return Request(text, [tool.call(row) for row in (first, *(first | row for row in others))])


def _new(first: dict[str, Said], row: dict[str, Said], name: str) -> bool:
    return name not in first or first[name].value != row[name].value


def _changed(choose: Chooser, tool: Tool, rows: Rows) -> str:
    """What is other in each call: `with 5 as the radius and with 6 as the radius`, `with radius 5 and unit cm`."""
    (name, *more), form = rows[0], choose.pick(POOLS["change"])
    bare = any(alone(tool.parameters[name], row[name]) for row in rows)
    if more or bare:
        parts = [" and ".join(_named(tool.parameters[each], said) for each, said in row.items()) for row in rows]
        parts = parts if bare else [f"with {part}" for part in parts]
    else:
        parts = [form.format(name=spaced(name), words=row[name].words) for row in rows]
    return re.sub(r"\ba (?=[aeiou])", "an ", choose.listed(parts))


def _tails(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """`Book a hotel in Rome for 3 nights and in Oslo for two.` What stands before is said once."""
    template = tool.template(choose, fits=lambda text: not SENTENCES.search(text))
    places = [found.start() for found in TAIL.finditer(template or "")]
    places = [at for at in places if template and _tail_fits(tool, template[:at], template[at:])]
    if template is None or not places:
        return None
    at, last = choose.pick(places), len(LAST.findall(template)[0])
    tail = template[at:last].lstrip()
    rows = _rows(choose, tool, NAMED.findall(template), NAMED.findall(tail), min(count, 3))
    if rows is None:
        return None
    said = [worded(tail, row) for row in rows]
    apart = ", and " if any(re.search(r", | and ", each) for each in said) else choose.pick(POOLS["between tails"])
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


def _in_parentheses(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """`Find hotels in Rome (3 nights) and Oslo (5 nights).`"""
    template = tool.template(choose, fits=lambda text: not STORY.search(text))
    single = [name for name in _listable(tool, template) if tool.parameters[name].kind.text[0] == "@"]
    said = NAMED.findall(template or "")
    spare = [name for name, p in tool.parameters.items() if name not in said and "." not in name and _sayable(p)]
    if template is None or not single or not spare:
        return None
    name, aside = choose.pick(single), choose.some(spare, choose.pick((1, 1, 2)))
    rows = _rows(choose, tool, said, [name], count)
    if rows is None:
        return None
    words = []
    for row in rows:
        extra = {} if choose.chance(WITHOUT_SHARE) else tool.said(choose, aside)
        row |= extra
        beside = ", ".join(_named(tool.parameters[each], extra[each]) for each in extra)
        words.append(f"{row[name].words} ({beside})" if beside else row[name].words)
    text = worded(template, rows[0] | {name: Said(None, choose.listed(words))})
    return Request(text, [tool.call(row) for row in rows])


def _table(choose: Chooser, tool: Tool, count: int) -> Request | None:
    """The values of each call in a line."""
    names = [name for name, p in tool.parameters.items() if p.required and "." not in name]
    spare = [name for name, p in tool.parameters.items() if not p.required and "." not in name and _sayable(p)]
    names += choose.some(spare, choose.pick((0, 1, 1, 2)))
    if not names or len(names) > ROWS_MAX or any(tool.parameters[name].kind.text[0] == "o" for name in names):
        return None
    rows = [tool.said(choose, names) for _ in range(max(3, count) if choose.chance(LONG_TABLE_SHARE) else count)]
    cells = [[_cell(tool.parameters[name], row[name]) for name in names] for row in rows]
    heads = [spaced(name) for name in names]
    style = choose.pick(("lines", "lines", "points", "table", "commas"))
    if style == "commas" and "," in "".join(cell for row in cells for cell in row):
        style = "table"
    if style == "table":
        made = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *cells)]
    elif style == "commas":
        made = [", ".join(row) for row in (heads, *cells)]
    else:
        before, colon = choose.pick(("- ", "* ", "")), choose.pick((" ", ": "))
        apart = "; " if any("," in cell for row in cells for cell in row) else ", "
        labels = [f"{head}{colon}" if len(heads) > 1 else "" for head in heads]
        parts = [apart.join(map("".join, zip(labels, row, strict=True))) for row in cells]
        made = [f"{f'{at}. ' if style == 'lines' else before}{each}" for at, each in enumerate(parts, 1)]
    described = imperative(re.split(r"\. ", tool.function.description)[0].rstrip("."))
    lead = choose.pick(POOLS["before rows"]).format(capital(described), lowered(described), count=SMALL[len(rows)])
    lead = lead.replace("two times", "twice")
    return Request("\n".join([lead, *made]), [tool.call(row) for row in rows])


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


def _rows(
    choose: Chooser, tool: Tool, names: Sequence[str], varied: Sequence[str], count: int, apart: int = 1
) -> Rows | None:
    """Values for each call: those of `varied` are others each time (the first `apart` of them in any case), the rest
    the same. None where there are not enough of them."""
    fixed = tool.said(choose, [name for name in names if name not in varied])
    rows: Rows = []
    for _ in range(6 * count):
        row = fixed | tool.said(choose, varied)
        if varied and all(row[name].value != each[name].value for each in rows for name in varied[:apart]):
            rows.append(row)
        if len(rows) == count:
            return rows
    return rows if len(rows) > 1 else None


def _listable(tool: Tool, template: str | None) -> list[str]:
    """Parameters in whose places several values may stand: not those beside others of their sort, as in `3 by 4`."""
    found = list(NAMED.finditer(template or ""))
    names = [each[1] for each in found]
    kept = []
    for at, each in enumerate(found):
        before, after = each.string[: each.start()], each.string[each.end() :]
        span = re.search(r"\{[\w.]+\} (to|until|till|-) $", before) or re.match(r" (to|until|till) \{", after)
        kind = tool.parameters[each[1]].kind.text
        beside = at > 0 and re.search(r"[\w.]+\}[,;:]? ?$", before)
        joint = (
            INSIDE.search(before) or BESIDE.search(after) or beside or (span and (kind[0] in "inp" or kind in SPANS))
        )
        if not joint and names.count(each[1]) == 1 and kind[0] not in "lbo":
            kept.append(each[1])
    return kept


def _quoted(template: str, name: str) -> bool:
    """Whether it stands in quotes, or as the verb at the beginning."""
    return f'"{{{name}}}' in template or template.startswith(f"{{{name}}} the ")


def _plain(tool: Tool, used: Sequence[str]) -> list[str]:
    """Parameters of which a value alone says which it is for."""
    used = [name for name in used if not any(map(PHRASE.match, _words(tool.parameters[name])))]
    kinds = [re.sub(r"^[inp].*", "number", tool.parameters[name].kind.text) for name in used]
    return [name for name, kind in zip(used, kinds, strict=True) if kinds.count(kind) == 1 and kind[0] not in "lbo"]


def _words(parameter: Parameter) -> list[str]:
    return [option.partition("=")[2] for option in parameter.kind.options]


def _sayable(parameter: Parameter) -> bool:
    return parameter.kind.text[0] not in "ol" and parameter.kind.text != "b"


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
    if len(words) == 1 or not choose.chance(OTHER_LIST_SHARE):
        return choose.listed(words)
    return choose.pick(POOLS["enumerated"]).format(", ".join(words[:-1]), words[-1])


def _for_all(choose: Chooser, tool: Tool, text: str, rows: Rows) -> Request:
    """Now and then with another value that is said once for all calls."""
    known = rows[0].keys()
    spare = [name for name, p in tool.parameters.items() if name not in known and "." not in name and _sayable(p)]
    if spare and choose.chance(FOR_ALL_SHARE):
        name = choose.pick(spare)
        parameter = tool.parameters[name]
        more = tool.said(choose, [name])
        if alone(parameter, more[name]):
            text = f"{ended(text)} {capital(more[name].words)}, {choose.pick(POOLS['each of them'])}."
        else:
            way = choose.pick(POOLS["told of all"])
            text = f"{ended(text)} {capital(way.format(name=spaced(name), words=more[name].words))}"
        rows = [row | more for row in rows]
    return Request(text, [tool.call(row) for row in rows])
