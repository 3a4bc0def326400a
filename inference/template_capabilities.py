"""What a chat template takes, and shows in full. It is found out when the template is loaded: see `template_probe`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

SystemPlace: TypeAlias = Literal["anywhere", "first", "nowhere"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The defaults are those of a template that takes everything."""

    system: SystemPlace = "anywhere"  # where it takes system messages
    alternates: bool = False  # it takes turns of user and assistant only in alternation
    begins_with_user: bool = False  # it takes no turn of the assistant before the first one of the user
    empty: bool = True  # it takes messages without content
    content_parts: bool = False  # it takes contents as lists of parts only
    tools: bool = True  # it shows tools, calls and results, and the calls in a format that we parse
    parallel_calls: bool = True  # it takes several calls in one message
    text_with_calls: bool = True  # it takes content beside calls
    calls_as_content: bool = True  # it takes results of calls that are part of the content

    @property
    def least(self) -> Capabilities:
        """What is left if messages are rejected nevertheless. Tools stay as they are: the parser depends on them."""
        return replace(
            self, system="nowhere", alternates=True, begins_with_user=True, empty=False, parallel_calls=False
        )

    @property
    def turns(self) -> str:
        """The order of turns, in words."""
        if self.alternates:
            return "alternating"
        return "the user first" if self.begins_with_user else "any order"

    @property
    def tool_format(self) -> str:
        """How tools are shown, in words."""
        return "of the template" if self.tools else "described by the worker"

    def __str__(self) -> str:
        tools = self.tool_format if self.parallel_calls else f"{self.tool_format}, one call at a time"
        return f"system messages {self.system}; turns: {self.turns}; tools: {tools}"


EVERYTHING = Capabilities()
