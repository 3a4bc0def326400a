"""What a chat model can do, as its template tells."""

from __future__ import annotations

import pytest

from inference.message_fitting import Capabilities
from worker.routes.models import abilities

QWEN = "{% if tools %}<tool_call>{% endif %}<think></think>"


@pytest.mark.parametrize(
    ("template", "tools", "switches", "told"),
    [
        ("{{ messages }}", False, frozenset(), ["chat", "tools"]),
        ("{% if tools %}<tool_call>{% endif %}", True, frozenset(), ["chat", "tools"]),
        (QWEN, True, frozenset(), ["chat", "tools", "reasoning"]),
        ("{{ messages }}", False, frozenset({"enable_thinking"}), ["chat", "tools", "reasoning"]),
        ("<|channel|>analysis", True, frozenset(), ["chat", "tools", "reasoning"]),
        ("<|channel|>analysis", False, frozenset(), ["chat", "reasoning"]),
    ],
)
def test_a_template_tells_what_a_model_can_do(
    template: str, tools: bool, switches: frozenset[str], told: list[str]
) -> None:
    assert abilities(template, Capabilities(tools=tools), switches, sees=False) == told
    assert abilities(template, Capabilities(tools=tools), switches, sees=True) == [*told, "vision"]
