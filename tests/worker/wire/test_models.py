"""What a chat model can do, as its template tells."""

from __future__ import annotations

import pytest

from worker.wire.models import abilities

QWEN = "{% if tools %}<tool_call>{% endif %}<think></think>"


@pytest.mark.parametrize(
    ("template", "switches", "told"),
    [
        ("{{ messages }}", frozenset(), ["chat"]),
        ("{% if tools %}<tool_call>{% endif %}", frozenset(), ["chat", "tools"]),
        (QWEN, frozenset(), ["chat", "tools", "reasoning"]),
        ("{{ messages }}", frozenset({"enable_thinking"}), ["chat", "reasoning"]),
        ("<|channel|>analysis", frozenset(), ["chat", "reasoning"]),
        ("mytools_are_none", frozenset(), ["chat"]),
    ],
)
def test_a_template_tells_what_a_model_can_do(template: str, switches: frozenset[str], told: list[str]) -> None:
    assert abilities(template, switches) == told
