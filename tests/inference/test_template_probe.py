"""What a template takes is found out when it is loaded, and finding it out never fails a load."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from agents.parser.dialect import Format, choose
from inference.errors import InvalidTemplate
from inference.message_fitting import EVERYTHING, Capabilities
from inference.prompt import ChatMessage, ToolCall, have_effort
from inference.template import ChatTemplate
from tests.inference.families import FAMILIES

DOCS = Path(__file__).resolve().parents[2] / "docs/models.md"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}"
FORGETFUL = "{% for m in messages %}{% if m.role == 'user' %}U {% else %}A {% endif %}{{ m.content }} {% endfor %}"


def described() -> list[str]:
    """The rows of the table."""
    return re.findall(
        r"^\| .*\|$", DOCS.read_text("utf-8").partition("| family |")[2].partition("\n\n")[0], re.MULTILINE
    )


@cache
def loaded(family: str) -> ChatTemplate:
    return ChatTemplate(FAMILIES[family], bos="<s>", eos="</s>")


def row(family: str) -> str:
    template = loaded(family)
    can, dialect = template.capabilities, choose(FAMILIES[family], template.capabilities)
    if dialect.format is Format.HARMONY:
        reasoning = "its own channel"
    else:
        reasoning = f"`{dialect.thoughts.open}`".replace("|", r"\|") if dialect.thoughts else "none"
    if have_effort(template.switches):
        reasoning += ", can be switched"
    at_once = "several" if can.parallel_calls else "one"
    return f"| {family} | {can.system} | {can.turns} | {can.tool_format} | {at_once} | {reasoning}"


def test_the_table_of_families_is_true() -> None:
    """Its last two columns are those of `tests/agents/test_family_answers.py`."""
    assert [line.split(" | ")[:6] for line in described()] == [row(family).split(" | ") for family in FAMILIES]


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        DOUBLING,
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99999) if false %}{% endfor %}" * 9,
        "{{ 1 / 0 }}",
        "{{ 'a'.center(10 ** 10) }}",
    ],
)
def test_a_template_that_never_ends_or_always_fails_is_loaded_and_refuses_messages(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.template.PROBE_ITERATIONS_MAX", 2000)
    monkeypatch.setattr("inference.template.ITERATIONS_MAX", 5000)
    template = ChatTemplate(source)
    assert template.capabilities == replace(EVERYTHING, chats=False)
    assert template.fault and str(template.capabilities) == "no conversation"
    with pytest.raises(InvalidTemplate, match=r"takes too long|fails on these messages"):
        template.render([ChatMessage("user", "Hi")])


@pytest.mark.parametrize(
    "source",
    [
        "{{ 7 ** (10 ** 8) }}",
        "{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ ([0] * 9999999) * 9999999 }}",
        "{{ range(10 ** 9) | list }}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 'a' | center(1000) }}",
        "{{ '%*d' % (999, 1) }}",
        "{{ '%-*d' | format(999, 1) }}",
        "{{ '%1000d' % 1 }}",
        "{{ '{:1000}'.format(1) }}",
        "{{ 1 | round(1000000000, 'ceil') }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{% set s = 'a' * 10 ** 6 %}{{ ([s] * 10 ** 6) | join }}",
        "{% set s = 'a' * 10 ** 6 %}{{ s.join(['b'] * 10 ** 6) }}",
        "{% set s = 'a' * 10 ** 6 %}{{ s | replace('a', s) }}",
        "{% set s = 'a' * 10 ** 6 %}{{ s.replace('a', s) }}",
        "{% set s = 'a' * 10 ** 6 %}{{ ('\n' * 10 ** 6) | indent(s) }}",
        "{% set s = 'a' * 10 ** 6 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
        "{% set s = 'a' * 10 ** 6 %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 40,
        "{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}{% set s = 'a' * 10 ** 6 %}" + "{% set s = f(s) %}" * 40,
        "{% for i in range(99999) %}" + "a" * 10**5 + "{% endfor %}",
        "{% for i in range(99999) %}{{ '" + "a" * 10**5 + "' }}{% endfor %}",
    ],
)
def test_a_template_that_computes_something_enormous_is_loaded_and_refuses_messages(source: str) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}" + source)
    with pytest.raises(InvalidTemplate, match=r"too large|too long|Range too big"):
        template.render([ChatMessage("user", "Hi")])


@pytest.mark.parametrize(
    "source",
    [
        "{% set __work = namespace(_left=10 ** 12) %}",
        "{% macro f(__work) %}{% endmacro %}",
        "{% macro __work() %}{% endmacro %}",
        "{{ __work.count(0, -1000000) }}",
    ],
)
def test_a_template_cannot_change_its_own_limits(source: str) -> None:
    with pytest.raises(InvalidTemplate, match="uses the name __work"):
        ChatTemplate(source + ENDLESS)


def test_a_template_with_blocks_which_nobody_counts_is_refused() -> None:
    with pytest.raises(InvalidTemplate, match="has blocks"):
        ChatTemplate("{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}")


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ '9%%2000 of %d' % 7 }}", "9%2000 of 7"),
        ("{{ '100%% * %s' | format(7) }}", "100% * 7"),
        ("""{{ '{{"year 2026": {{"b": {}}}}}'.format(1) }}""", '{"year 2026": {"b": 1}}'),
    ],
)
def test_digits_and_marks_that_are_no_width_are_written(source: str, written: str) -> None:
    [segment] = ChatTemplate(source).render([ChatMessage("user", "Hi")])
    assert segment.text == written


def test_a_template_may_count_format_and_repeat() -> None:
    source = "{{ 2 ** 10 + loops * 60 }} {{ '-' * 3 }} {{ [1] * 2 }} {{ 'a' ~ 1 ~ none }} {{ '%05d of 2026' % 7 }}"
    source = source.replace("loops", "messages | length") + " {{ '{:>3}'.format(1) }}"
    source += " {{ 1700000000 + 86400 }} {{ '1234567890' + 'a' }} {{ ', '.join(['b', 'c']) }} {{ [4, 5] | join('-') }}"
    source += (
        " {{ messages | join('/', attribute='role') }} {{ 'aXa'.replace('X', '') }} {{ 'aXa' | replace('a', 'b', 1) }}"
    )
    source += " {{ 'a\n\nb' | indent(2, first=true) }}{{ nothing }}"
    written = "".join(segment.text for segment in ChatTemplate(source).render([ChatMessage("user", "Hi")]))
    assert written == "1084 --- [1, 1] a1None 00007 of 2026   1 1700086400 1234567890a b, c 4-5 user aa bXa   a\n\n  b"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{{ 'Functions: ' + functions }}" + FORGETFUL, "'functions' is undefined"),
        ("{% for m in messages %}{{ m.role }} {{ m.text }} {% endfor %}", "drops messages"),
    ],
)
def test_why_a_template_takes_no_conversation_is_told(source: str, fault: str) -> None:
    assert fault in ChatTemplate(source).fault
    assert ChatTemplate(FORGETFUL).fault == ""


def test_a_variable_that_a_template_misses_can_be_set() -> None:
    template = ChatTemplate("{{ 'Functions: ' + functions }} " + FORGETFUL)
    rendered = template.render([ChatMessage("user", "Hi")], switches={"functions": "none"})
    assert "".join(segment.text for segment in rendered) == "Functions: none U Hi "


def test_a_system_message_that_is_shown_as_an_answer_is_not_taken() -> None:
    later = FORGETFUL.replace("{% else %}", "{% elif m.role == 'system' and loop.first %}S {% else %}")
    assert [ChatTemplate(source).capabilities.system for source in (FORGETFUL, later)] == ["nowhere", "first"]


def test_turns_alternate_where_none_of_the_user_may_follow_a_result() -> None:
    refusing = "{{ raise_exception('no') if loop.previtem is defined and loop.previtem.role == 'tool' }}"
    source = FAMILIES["Qwen 2.5"].replace("{% elif m.role == 'user' %}", f"{{% elif m.role == 'user' %}}{refusing}")
    assert ChatTemplate(source).capabilities.alternates


def test_the_user_comes_first_where_tools_turn_any_first_message_into_the_users() -> None:
    named = "<|im_start|>{{ 'user' if tools and loop.first else 'assistant' }}"
    assert not ChatTemplate(FAMILIES["Qwen 2.5"]).capabilities.begins_with_user
    source = FAMILIES["Qwen 2.5"].replace("%}<|im_start|>assistant{{ '\n' }}{{ m", f"%}}{named}{{{{ '\n' }}}}{{{{ m")
    source = source.replace("in messages %}", "in (messages[1:] if messages[0].role == 'system' else messages) %}")
    assert ChatTemplate(source).capabilities.begins_with_user


def test_an_answer_is_opened_as_in_later_prompts_unless_a_thought_is_opened_and_dropped() -> None:
    def opening(family: str, **switches: bool) -> str:
        opened = ChatTemplate(FAMILIES[family])
        last = opened.render([ChatMessage("user", "?")], switches=switches)[-1]
        return last.text if last.text in opened.openings else ""

    assert opening("Granite 4") == "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
    assert opening("Qwen 3") == "<|im_end|>\n<|im_start|>assistant\n"
    assert opening("Qwen 3", enable_thinking=False) == opening("Qwen 3.5") == opening("gpt-oss") == ""
    called = [ChatMessage("user", "?"), ChatMessage("assistant", "", (ToolCall("f", "{}"),)), ChatMessage("tool", "3")]
    for family, known in (("LFM2", True), ("Qwen 3.5", False)):
        template = ChatTemplate(FAMILIES[family])
        assert (template.render(called)[-1].text in template.openings) == known


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (
            "{% for key, value in c.function.arguments.items() %}",
            "{{ c.function.arguments | tojson }}{% for key in [] %}",
        ),
        ("<tool_call>", "<other:tool_call>"),
    ],
)
def test_tools_are_described_where_calls_only_resemble_what_a_parser_reads(written: str, instead: str) -> None:
    source = FAMILIES["Qwen3-Coder"]
    assert written in source
    assert ChatTemplate(source).capabilities.tools
    assert not ChatTemplate(source.replace(written, instead)).capabilities.tools


def test_contents_are_parts_only_where_texts_get_lost() -> None:
    takes_both = FORGETFUL.replace("m.content", "m.content if m.content is string else m.content[0].text")
    takes_parts = FORGETFUL.replace("m.content", "m.content[0].text")
    assert [ChatTemplate(source).capabilities.content_parts for source in (takes_both, takes_parts)] == [False, True]


def test_a_template_that_goes_through_the_tools_without_looking_gets_an_empty_list() -> None:
    loop = "{% for tool in tools %}{{ tool.function.name }} {{ tool.function.description }} {% endfor %}"
    template = ChatTemplate(loop + FAMILIES["Qwen 2.5"].replace("system or tools", "system"))
    assert template.render([ChatMessage("user", "Hi")])[-1].text.endswith("assistant\n")
    assert not any(loaded(family).capabilities.lists_tools for family in FAMILIES)


def test_capabilities_are_told_in_words() -> None:
    told = str(Capabilities(system="first", alternates=True, parallel_calls=False))
    assert told == "system messages first; turns: alternating; tools: of the template, one call at a time"
    told = str(Capabilities(begins_with_user=True, tools=False))
    assert told == "system messages anywhere; turns: the user first; tools: described by the worker"
