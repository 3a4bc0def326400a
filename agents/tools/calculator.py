"""Arithmetic on an expression. The text is untrusted, so its size, depth and numbers have limits."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias

from agents.tool import ToolError, tool

EXPRESSION_CHARS_MAX = 500
NESTING_MAX = 40  # each level takes a few frames of Python's stack
CACHE_S = 3600.0  # the value never changes; this only frees memory
BITS_MAX = 4096  # of any intermediate result: about 1200 digits, microseconds to multiply
RESULT_DIGITS_MAX = 30  # a longer integer is rounded: a model cannot copy it anyway
FLOAT_DIGITS = 12  # hides 0.1 + 0.2 = 0.30000000000000004

# As people and models write them.
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})

Number: TypeAlias = int | float

_BINARY: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "round": lambda value, digits=0: _rounded(value, digits),
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e}


@tool(cache_s=CACHE_S)
def calculator(expression: str) -> dict[str, str | int | float]:
    """Evaluate an arithmetic expression.

    Args:
        expression: The arithmetic expression, e.g. 2 * (3 + 4)
    """
    return {"expression": expression, "result": evaluate(expression)}


def evaluate(expression: str) -> Number:
    """The value of an expression of numbers, + - * / // % **, parentheses and a few functions. Raises ToolError."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise ToolError(f"the expression is longer than {EXPRESSION_CHARS_MAX} characters")
    try:
        tree = ast.parse(expression.strip().translate(_SIGNS), mode="eval")
        return _shown(_value(tree.body, NESTING_MAX))
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ToolError(f"'{expression[:80]}' is not an arithmetic expression") from None


def _value(node: ast.expr, levels: int) -> Number:
    if not levels:
        raise ToolError(f"the expression is nested deeper than {NESTING_MAX} levels")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand, levels - 1))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left, levels - 1), _value(right, levels - 1)))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left, levels - 1), _value(right, levels - 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(argument, levels - 1) for argument in arguments)))
    raise ToolError(f"'{ast.unparse(node)[:80]}' is not allowed in an expression")


def _power(base: Number, exponent: Number) -> Number:
    """Rejects a result that would be too large before computing it: 9**9**9 has 370 million digits."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        if base.bit_length() * exponent > BITS_MAX and abs(base) > 1:
            raise OverflowError
        return int(base**exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ToolError("a negative number has no real root")
    return float(result)


def _rounded(value: Number, digits: Number = 0) -> Number:
    """Python's own `round` would build 10**digits however large that is."""
    if not isinstance(digits, int) or abs(digits) > RESULT_DIGITS_MAX:
        raise ToolError(f"round takes at most {RESULT_DIGITS_MAX} digits")
    return round(value, digits) if digits else round(value)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > BITS_MAX:
        raise OverflowError
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def _shown(value: Number) -> Number:
    """Whole numbers as integers, others without the noise of binary fractions."""
    if isinstance(value, int):
        return value if abs(value) < 10**RESULT_DIGITS_MAX else float(value)
    short = float(f"{value:.{FLOAT_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**15 else short
