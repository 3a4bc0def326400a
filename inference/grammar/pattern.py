"""Regular expressions to grammar rules: the value of `pattern`, as JSON writes it between its quotes.

The subset of ECMA 262 that has one meaning everywhere: literals, classes, groups, alternatives, repetitions, and
anchors at the two ends. What is not anchored may stand anywhere in the text. What looks around, counts on what was
matched before, or means something else elsewhere is refused.
"""

from __future__ import annotations

from inference.errors import InvalidSchema
from inference.grammar.ranges import ANY, DIGITS, NAMED, SPACES, WORD, Ranges, inverted, single, terminal
from inference.grammar.rules import Rules, either

CHARS_MAX = 500  # of one expression: longer ones are no longer read by anybody
DEPTH_MAX = 16
CLASSES = {"d": DIGITS, "w": WORD, "s": SPACES}
PUNCTUATION = "\\^$.|?*+()[]{}/-\"'#&,:;<=>@_`~%! "


class PatternConverter:
    """Reads one expression from left to right. Raises InvalidSchema naming the place of the pattern."""

    def __init__(self, pattern: str, rules: Rules, path: str) -> None:
        self._text = pattern
        self._rules = rules
        self._path = path
        self._at = 0

    def root(self) -> str:
        """The expression that stands for a whole text, without its quotes."""
        if len(self._text) > CHARS_MAX:
            raise self._refused(f"a pattern has at most {CHARS_MAX} characters")
        alternatives = [self._anchored()]
        while self._takes("|"):
            alternatives.append(self._anchored())
        if self._at < len(self._text):
            raise self._refused(f"'{self._text[self._at]}' stands where nothing can")
        return either(alternatives)

    def _anchored(self) -> str:
        anything = f"{self._rules.shared('character')}*"
        before = "" if self._takes("^") else f"{anything} "
        body = self._sequence(0)
        return f"{before}{body}" if self._takes("$") else f"{before}{body} {anything}"

    def _alternatives(self, depth: int) -> str:
        parts = [self._sequence(depth)]
        while self._takes("|"):
            parts.append(self._sequence(depth))
        return self._rules.add(" | ".join(parts))

    def _sequence(self, depth: int) -> str:
        parts = []
        while self._at < len(self._text) and self._text[self._at] not in "|)$":
            parts.append(self._repeated(self._atom(depth)))
        return " ".join(parts) or '""'

    def _atom(self, depth: int) -> str:
        if self._takes("("):
            return self._group(depth)
        if self._takes("["):
            return terminal(self._class())
        if self._takes("."):
            return terminal(ANY)
        if self._takes("\\"):
            return terminal(self._escaped())
        character = self._next()
        if character in "*+?{}])^":
            raise self._refused(f"'{character}' stands where nothing can")
        return terminal(single(character))

    def _group(self, depth: int) -> str:
        if depth >= DEPTH_MAX:
            raise self._refused(f"groups nest {DEPTH_MAX} deep")
        if self._takes("?") and not self._takes(":"):
            raise self._refused("of the groups with (? only (?: is supported")
        body = self._alternatives(depth + 1)
        if not self._takes(")"):
            raise self._refused("a group is not closed")
        return body

    def _repeated(self, part: str) -> str:
        least, most = self._count()
        if (least, most) == (1, 1):
            return part
        self._takes("?")  # lazy or greedy is the same set of texts
        if most is None and least <= 1:
            return f"{part}{'+' if least else '*'}"
        return self._rules.repeat(part, least, most, self._path)

    def _count(self) -> tuple[int, int | None]:
        for mark, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(mark):
                return count
        if not self._takes("{"):
            return 1, 1
        least = self._number()
        most = (self._number() if self._peek().isdigit() else None) if self._takes(",") else least
        if not self._takes("}") or (most is not None and most < least):
            raise self._refused("a repetition is {n}, {n,} or {n,m}")
        return least, most

    def _number(self) -> int:
        digits = ""
        while self._peek().isascii() and self._peek().isdigit():
            digits += self._next()
        if not 1 <= len(digits) <= 4:
            raise self._refused("a repetition is {n}, {n,} or {n,m}")
        return int(digits)

    def _class(self) -> Ranges:
        negated = self._takes("^")
        ranges: Ranges = []
        while not self._takes("]"):
            ranges += self._member()
        if not ranges:
            raise self._refused("a class is empty")
        return inverted(ranges) if negated else ranges

    def _member(self) -> Ranges:
        first = self._one()
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._next()
        last = self._one()
        if len(first) != 1 or len(last) != 1 or first[0][0] != first[0][1] or last[0][1] < first[0][0]:
            raise self._refused("a range in a class goes from a lower character to a higher one")
        return [(first[0][0], last[0][1])]

    def _one(self) -> Ranges:
        return self._escaped() if self._takes("\\") else single(self._next())

    def _escaped(self) -> Ranges:
        character = self._next()
        if character.lower() in CLASSES:
            ranges = CLASSES[character.lower()]
            return ranges if character.islower() else inverted(ranges)
        if character in NAMED:
            return single(NAMED[character])
        if character in "xu":
            return single(self._by_code(2 if character == "x" else 4))
        if character not in PUNCTUATION:
            raise self._refused(f"'\\{character}' is not supported")
        return single(character)

    def _by_code(self, digits: int) -> str:
        code = "".join(self._next() for _ in range(digits))
        try:
            value = int(code, 16) if code.isalnum() else -1
        except ValueError:
            value = -1
        if value < 0x20 or 0xD800 <= value < 0xE000:
            raise self._refused(f"'{code}' is no character")
        return chr(value)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._refused("it ends too soon")
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, mark: str) -> bool:
        found = self._peek() == mark
        self._at += found
        return found

    def _refused(self, reason: str) -> InvalidSchema:
        return InvalidSchema(f"this pattern cannot be held: {reason}", self._path)
