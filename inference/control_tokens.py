"""Control tokens that are significant in an answer: they mark tool calls and reasoning.

Control tokens have no text in generated output, so that users do not see end-of-turn markers. Those listed here keep
their text if the model's chat template contains them, for the parser of its tool-call dialect. Those of Hermes keep it
in any case: in that dialect, tools are described to a model whose template has none.
"""

from __future__ import annotations

DESCRIBED = frozenset({"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})  # Hermes and Qwen
SIGNIFICANT = DESCRIBED | frozenset(
    {
        # Llama 3, Mistral
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[THINK]",
        "[/THINK]",
        # Qwen, DeepSeek and others
        "<think>",
        "</think>",
        # Gemma
        "<|tool_call>",
        "<tool_call|>",
        '<|"|>',
        "<|channel>",
        "<channel|>",
        "<start_function_call>",
        "<end_function_call>",
        "<escape>",
        # gpt-oss
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
    }
)


def significant_tokens(chat_template: str) -> frozenset[str]:
    """The texts of control tokens that an answer of this model may contain."""
    return frozenset(mark for mark in SIGNIFICANT if mark in DESCRIBED or mark in chat_template)
