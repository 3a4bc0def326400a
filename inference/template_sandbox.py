"""Where a chat template runs: it is a program out of a file, so its steps, its numbers and its texts are bounded. What
is too large is refused before it is computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from string import Formatter
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.filters import do_indent, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from inference.errors import InvalidTemplate

WORK = "__work"  # the variable with what a rendering may still do, of which no template may speak
COUNT, TELL = "count_iteration", "tell"  # filters that the compiled template applies
SIZE_MAX = 2**26  # characters or elements of a value: several times the longest text of a request
TOLD_MAX = 2**28  # characters that a rendering writes in all, also where a macro takes them
STEP_CHARS = 10_000  # are copied in the time of an iteration
NUMBER_BITS_MAX = 64
WIDTH_MAX = 999  # of numbers that say how long a text or a list becomes
SIZED = ("batch", "center", "format", "round", "slice")  # filters that take one
# Methods of texts that no template needs.
MULTIPLYING = frozenset({"center", "expandtabs", "ljust", "rjust", "translate", "zfill"})
# How wide a value becomes as it is formatted has three digits, and does not come from another value.
_CONVERSION = re.compile(r"%(?:%|[^a-zA-Z%]*(\*|\d{4}))")
_WIDE = re.compile(r"\{|\d{4}")  # behind the colon of a field


class Work:
    """What a rendering may still do, in iterations of loops and calls of macros, and write."""

    def __init__(self, iterations: int) -> None:
        self._left, self._room = iterations, TOLD_MAX

    def count(self, told: int, steps: int = 1) -> bool:
        """An iteration, which may write so many characters that stand in the template. True, for conditions."""
        self._left -= steps
        self._room -= told
        if self._left < 0:
            raise InvalidTemplate("the model's chat template takes too long for these messages")
        if self._room < 0:
            raise _too_large()
        return True

    def tell(self, value: Any) -> str:
        text = str(value)
        self.count(len(text), 0)
        return text

    def write(self, size: int) -> None:
        """A value of this size is about to be made."""
        if size > SIZE_MAX:
            raise _too_large()
        self.count(0, size // STEP_CHARS)


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})  # the compiler does not compute these in advance either

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {name: _narrow(name, self.filters[name]) for name in SIZED}
        self.filters |= {COUNT: Work.count, TELL: Work.tell}
        self.filters |= {"join": _joined, "replace": _replaced, "indent": _indented}
        del self.globals["lipsum"]

    def bounded(self, tree: nodes.Template) -> nodes.Template:
        """A filter is called directly: it takes a tenth of the time of a function, which the sandbox examines. Raises
        InvalidTemplate."""
        names = {name.name for name in tree.find_all(nodes.Name)} | {macro.name for macro in tree.find_all(nodes.Macro)}
        if WORK in names:
            raise InvalidTemplate(f"the model's chat template uses the name {WORK}")
        if next(tree.find_all(nodes.Block), None) is not None:
            raise InvalidTemplate("the model's chat template has blocks, which can call themselves uncounted")
        loops, macros = tree.find_all(nodes.For), tree.find_all(nodes.Macro)
        for body in [*(loop.body for loop in loops), *(macro.body for macro in macros)]:
            body.insert(0, nodes.ExprStmt(_work(COUNT, nodes.Const(_characters(body)))))
        for loop in tree.find_all(nodes.For):
            if loop.test is not None:  # elements that it leaves out never come to the body
                loop.test = nodes.And(_work(COUNT, nodes.Const(0)), loop.test)
        changed: nodes.Template = _Bounds().visit(tree)
        return changed

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in MULTIPLYING) and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int | float) and isinstance(right, int | float):
            _check_number(operator, left, right)
        elif operator == "%":
            _check_conversions(left)
        elif operator == "*":
            context[WORK].write(_length(left) * _length(right))
        else:
            context[WORK].write(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """The template chooses the names of the arguments."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps that which formats a text
        if isinstance(method, BuiltinMethodType):
            if method is not __obj and isinstance(method.__self__, str):
                _check_fields(method.__self__)
            match method.__self__, method.__name__, args:
                case str() as separator, "join", (texts,):
                    return _joined(__context, texts, separator)
                case str() as text, "replace", (str() as old, str() as new, *_):
                    _check_replacement(__context, text, old, new)
        return super().call(__context, __obj, *args, **named)


class _Bounds(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        """`~` is no operator that a sandbox sees."""
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes, lineno=node.lineno), "join", [], [], None, None)

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        in_template = (nodes.TemplateData, nodes.Const)
        node.nodes = [each if isinstance(each, in_template) else _work(TELL, each) for each in node.nodes]
        return node


def _work(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(nodes.Name(WORK, "load"), name, [value], [], None, None)


def _characters(body: Sequence[nodes.Node]) -> int:
    """That stand in it: an upper bound of what it writes by itself."""
    data = sum(len(text.data) for node in body for text in node.find_all(nodes.TemplateData))
    return data + sum(len(str(constant.value)) for node in body for constant in node.find_all(nodes.Const))


@jinja2.pass_context
def _joined(context: Context, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Arguments are named as those of the usual filter."""
    each = values if attribute is None else map(make_attrgetter(context.environment, attribute), values)
    texts, separator = [*map(str, each)], str(d)
    context[WORK].write(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


@jinja2.pass_context
def _replaced(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(s), str(old), str(new)
    _check_replacement(context, text, old, new)
    return text.replace(old, new, -1 if count is None else count)


@jinja2.pass_context
def _indented(context: Context, s: Any, width: int | str = 4, *more: Any, **named: Any) -> str:
    text = str(s)
    each = len(width) if isinstance(width, str) else width
    context[WORK].write(len(text) + (1 + each) * (1 + len(text.splitlines())))
    return do_indent(text, width, *more, **named)


def _check_replacement(context: Context, text: str, old: str, new: str) -> None:
    context[WORK].write(len(text) + len(new) * text.count(old))


def _narrow(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter)
    def narrow(*args: Any, **named: Any) -> Any:
        _check_widths(*args, *named.values())
        if name == "format":
            _check_conversions(args[0])
        return filter(*args, **named)

    return narrow


def _length(value: Any) -> int:
    """Of a text or a list; or how often one is repeated."""
    if isinstance(value, int):
        return max(0, value)
    return len(value) if isinstance(value, str | list | tuple) else 1


def _check_number(operator: str, left: float, right: float) -> None:
    bits, more = (number.bit_length() if isinstance(number, int) else 1 for number in (left, right))
    if (bits * abs(right) if operator == "**" else bits + more) > 2 * NUMBER_BITS_MAX:
        raise _too_large()


def _check_widths(*values: Any) -> None:
    if any(isinstance(value, int) and value > WIDTH_MAX for value in values):
        raise _too_large()


def _check_conversions(text: Any) -> None:
    if isinstance(text, str) and any(match[1] for match in _CONVERSION.finditer(text)):
        raise _too_large()


def _check_fields(text: str) -> None:
    if any(_WIDE.search(width or "") for _, _, width, _ in Formatter().parse(text)):
        raise _too_large()


def _too_large() -> InvalidTemplate:
    return InvalidTemplate("the model's chat template makes a number or a text that is too large")
