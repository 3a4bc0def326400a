"""Grammars of texts within JSON strings, held by the library itself."""

from __future__ import annotations

import json

import pytest

from inference.errors import InvalidSchema
from inference.grammar.calls import CallableFunction, Forced, llama_calls, tool_grammar
from inference.grammar.constraint import Vocabulary, check_productive
from inference.grammar.lark import COMMON, escaped, hollow, readable

END = 256
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], frozenset({END}))
PATCH = """
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " filename LF added+ | "*** Delete File: " filename LF
filename: /(.+)/
added: "+" /(.*)/ LF -> line
%import common.LF
"""
PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def holds(grammar: str, text: str) -> bool:
    """Whether the grammar takes the whole text."""
    state = VOCABULARY.compile(grammar).start()
    for byte in text.encode():
        if not state.allows(byte):
            return False
        state.accept(byte)
    return state.allows(END)


def within_json(definition: str, text: str) -> bool:
    return holds(
        f"start: inner\ninner: %lark {{\n{escaped(definition)}}}\n", json.dumps(text, ensure_ascii=False)[1:-1]
    )


TAKEN = [
    ('start: "say \\"hi\\"\\n"', 'say "hi"\n'),
    ("start: /[^\\n]+/", 'a "quoted" \\ text 😀'),
    ("start: /.*/ LF\n%import common.LF", '\\n is no "break"\n'),
    ("start: WORD WS NUMBER\n%import common (WORD, WS, NUMBER)", "abc \n 12.5"),
    ("start: /\\s+\\S+\\d\\w/", '\n\t"x"1a'),
    ('start: " ".."~"+', 'a"\\'),
    ('start: /[\\]\\-"]+/ /\\x41\\/\\./', ']-"A/.'),
    ('start: A (B | A){2,3}\nA: /a|b/ // one\nB: "c"', "abcb"),
    ('start: "select"i ["x"] /(?:a|bc)+?/', "SeLectxabc"),
    ('start: nested\nnested: "(" nested? ")"', "((()))"),
    (PATCH, '*** Begin Patch\n*** Add File: a"\\.py\n+print("x\\n")\n+\n*** Delete File: b\n*** End Patch\n'),
]


@pytest.mark.parametrize(("definition", "text"), TAKEN)
def test_a_text_is_taken_as_it_is_and_within_json(definition: str, text: str) -> None:
    assert holds(definition, text)
    assert within_json(definition, text)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ("start: /[^\\n]+/", "a\nb"),
        ("start: /.+/", "a\nb"),
        ("start: /[a-z]+/", 'a"'),
        ("start: /\\S+/", "a\tb"),
        ('start: "a"', "ab"),
        (PATCH, "*** Begin Patch\n*** Move File: a\n*** End Patch\n"),
    ],
)
def test_any_other_text_is_not(definition: str, text: str) -> None:
    assert not holds(definition, text)
    assert not within_json(definition, text)


@pytest.mark.parametrize("name", COMMON)
def test_a_terminal_of_the_library_means_the_same_here(name: str) -> None:
    texts = (
        "a",
        "A",
        "_a1",
        "7",
        "-7",
        "1.5",
        "1.5e3",
        '"a"',
        '"a\\"b"',
        "\n",
        "\r\n\n",
        "\r",
        " \t",
        " \n",
        "ab",
        "f",
        "",
    )
    for text in texts:
        definition = f"start: {name}\n%import common.{name}"
        assert within_json(definition, text) == holds(definition, text), text


@pytest.mark.parametrize(
    "definition",
    [
        "start: /a/i",
        "start: /^a$/",
        "start: /(?=a)/",
        "start: /\\p{L}/",
        "start: /[[:alpha:]]/",
        "start: /[a--b]/",
        "start: /[z-a]/",
        "start: A & B",
        "start: ~A",
        "start: %json {}",
        "start: <think>",
        "%ignore WS",
        "%import common.FOO",
        "%import python.X",
        'start: "\\q"',
        'start[suffix="x"]: /a/',
    ],
)
def test_what_cannot_be_held_is_refused(definition: str) -> None:
    with pytest.raises(InvalidSchema, match="this grammar is not supported"):
        escaped(definition)


@pytest.mark.parametrize(
    "definition",
    [
        *(definition for definition, _ in TAKEN),
        'start: e\ne: e "+" T | T\nT: "(" T? ")"',
        'start: "a" | start',
        "start:",
    ],
)
def test_a_grammar_whose_rules_end_is_productive(definition: str) -> None:
    check_productive(hollow(definition))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("start: start", "never ends"),
        ('start: start "a"', "never ends"),
        ('start: "a" start', "never ends"),
        ('start: "a" b | "c"\nb: c\nc: "x" b', "never ends"),
        ("start: A B", 'unknown name: "A"'),
        ('rule: "a"', 'unknown name: "start"'),
        ("start: (", "Expected token"),
    ],
)
def test_a_grammar_with_a_rule_that_no_text_completes_is_not(definition: str, reason: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        check_productive(hollow(definition))
    assert reason in readable(refused.value.reason)


@pytest.mark.parametrize("dialect", ["hermes", "llama"])
def test_a_call_is_held_to_the_grammar_of_its_input(dialect: str) -> None:
    function = CallableFunction("edit", PARAMETERS, True, lark=escaped(PATCH))
    grammar = tool_grammar([function], required=True) if dialect == "hermes" else llama_calls([function], Forced(1))
    key, mark, end = ("arguments", "<tool_call>\n", "\n</tool_call>") if dialect == "hermes" else ("parameters", "", "")
    for hunk, taken in (("Delete", True), ("Move", False)):
        text = f"*** Begin Patch\n*** {hunk} File: a\n*** End Patch\n"
        assert holds(grammar, f"{mark}{json.dumps({'name': 'edit', key: {'input': text}})}{end}") == taken
