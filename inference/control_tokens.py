"""Control tokens that mean something in an answer: calls and thoughts are written with them.

A control token is silent in generated text, or a model would show its end-of-turn marks to users. These keep their
text where the model's chat template has them, for the reader of its tool-call dialect.
"""

from __future__ import annotations

SIGNIFICANT = frozenset(
    {
        # Llama 3, Mistral
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[THINK]",
        "[/THINK]",
        # Hermes and Qwen, where a vocabulary has them as control tokens
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
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
    return frozenset(mark for mark in SIGNIFICANT if mark in chat_template)
