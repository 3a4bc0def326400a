"""Where a chat template runs: it is a program out of a file, so its steps, its numbers and its texts are bounded. What
is too large is refused before it is computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from inference.errors import InvalidTemplate

WORK = "__work"  # the variable with what a rendering may still do
COUNT, CONCATENATE = "count_iteration", "concatenate"  # filters that the compiled template applies
SIZE_MAX = 2**26  # characters or elements of a value: several times the longest text of a request
STEP_CHARS = 10_000  # are copied in the time of an iteration
NUMBER_BITS_MAX = 64
WIDTH_MAX = 2**20  # of numbers that say how long a text or a list becomes
SIZED = ("batch", "center", "format", "indent", "round", "slice")  # filters that take one
_WIDTH = re.compile(r"\d{7}")  # in a text that is formatted


class Work:
    """What a rendering may still do, in iterations of loops and calls of macros."""

    def __init__(self, iterations: int) -> None:
        self._left = iterations

    def count(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise InvalidTemplate("the model's chat template takes too long for these messages")

    def write(self, size: int) -> None:
        """A value of this size is about to be made."""
        if size > SIZE_MAX:
            raise _too_large()
        self.count(size // STEP_CHARS)


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})  # the compiler does not compute these in advance either

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {name: _narrow(name, self.filters[name]) for name in SIZED}
        self.filters |= {COUNT: Work.count, CONCATENATE: _concatenated}
        del self.globals["lipsum"]

    def bounded(self, tree: nodes.Template) -> nodes.Template:
        """A filter is called directly: it takes a tenth of the time of a function, which the sandbox examines."""
        loops, macros = tree.find_all(nodes.For), tree.find_all(nodes.Macro)
        for body in [*(loop.body for loop in loops), *(macro.body for macro in macros)]:
            body.insert(0, nodes.ExprStmt(_filter(nodes.Name(WORK, "load"), COUNT)))
        changed: nodes.Template = _Concatenations().visit(tree)
        return changed

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int | float) and isinstance(right, int | float):
            _check_number(operator, left, right)
        elif operator == "%":
            _check_format(left)
        elif operator == "*":
            context[WORK].write(_length(left) * _length(right))
        else:
            context[WORK].write(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """The template chooses the names of the arguments."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps that which formats a text
        if isinstance(method, BuiltinMethodType):
            _check_widths(*args, *named.values())
            if method is not __obj:
                _check_format(method.__self__)
        return super().call(__context, __obj, *args, **named)


class _Concatenations(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        """`~` is no operator that a sandbox sees."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), CONCATENATE)


@jinja2.pass_context
def _concatenated(context: Context, values: list[Any]) -> str:
    texts = [*map(str, values)]
    context[WORK].write(sum(map(len, texts)))
    return "".join(texts)


def _filter(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


def _narrow(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter)
    def narrow(*args: Any, **named: Any) -> Any:
        _check_widths(*args, *named.values())
        if name == "format":
            _check_format(args[0])
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


def _check_format(text: Any) -> None:
    if isinstance(text, str) and _WIDTH.search(text):
        raise _too_large()


def _too_large() -> InvalidTemplate:
    return InvalidTemplate("the model's chat template makes a number or a text that is too large")
