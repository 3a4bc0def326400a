"""A conversation being written, and the text it becomes: messages as the chat template sees them; which are learnt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.prompt import ChatMessage, ToolCall

HEAD = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)
OPENING = "<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a prompt; `learnt` where the model is to write it."""

    text: str
    learnt: bool = False


def call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


@dataclass(slots=True)
class Scene:
    """`messages[0]` is the system text. What stands in `unlearnt` is history that its prompt does not explain."""

    schemas: Sequence[Mapping[str, Any]] = ()
    messages: list[ChatMessage] = field(default_factory=list)
    unlearnt: set[int] = field(default_factory=set)

    def system(self, text: str) -> None:
        self.messages.append(ChatMessage("system", text))

    def notice(self, text: str) -> None:
        """A word of the platform in the middle of a turn."""
        self.messages.append(ChatMessage("system", text))

    def user(self, text: str) -> None:
        self.messages.append(ChatMessage("user", text))

    def answer(self, text: str, *, learnt: bool = True) -> None:
        if not learnt:
            self.unlearnt.add(len(self.messages))
        self.messages.append(ChatMessage("assistant", text))

    def calls(self, *calls: ToolCall) -> None:
        self.messages.append(ChatMessage("assistant", "", calls))

    def result(self, text: str) -> None:
        self.messages.append(ChatMessage("tool", text))

    def pieces(self, start: int = 0) -> Iterator[Piece]:
        """The messages from `start` on as the bundled model's template writes them; the system text has the tools."""
        messages = self.messages
        for i in range(start, len(messages)):
            message = messages[i]
            if message.role == "assistant":
                yield Piece(OPENING)
                yield Piece(f"{_said(message)}<|im_end|>", i not in self.unlearnt)
                yield Piece("\n")
            elif message.role == "tool":
                first = messages[i - 1].role != "tool"
                last = i + 1 == len(messages) or messages[i + 1].role != "tool"
                yield Piece(
                    ("<|im_start|>user" if first else "")
                    + f"\n<tool_response>\n{message.content}\n</tool_response>"
                    + ("<|im_end|>\n" if last else "")
                )
            else:
                tools = self._tools() if i == 0 else ""
                yield Piece(f"<|im_start|>{message.role}\n{message.content}{tools}<|im_end|>\n")

    def prompt(self, end: int) -> str:
        """What the model reads before it writes message `end`."""
        before = Scene(self.schemas, self.messages[:end])
        return "".join(piece.text for piece in before.pieces()) + OPENING

    def _tools(self) -> str:
        if not self.schemas:
            return ""
        return HEAD + "".join(f"\n{json.dumps(schema, ensure_ascii=False)}" for schema in self.schemas) + TAIL


def _said(message: ChatMessage) -> str:
    parts = [message.content] if message.content else []
    parts += [
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls
    ]
    return "\n".join(parts)
