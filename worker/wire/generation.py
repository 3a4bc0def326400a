"""The generation parameters that both surfaces share: sampling, and the options of the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints

from inference.generation import Sampling
from inference.template_options import VERBOSITY, TemplateOptions, have_effort
from worker.wire import limits
from worker.wire.strict import Ignored, Strict

Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
Variable: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ThoughtTokens: TypeAlias = Annotated[int, Field(ge=-1, le=limits.OUTPUT_TOKENS_MAX)]
Value: TypeAlias = bool | int | float | Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)]


def without_nulls(variables: Any) -> Any:
    if not isinstance(variables, dict):
        return variables
    return {name: value for name, value in variables.items() if value is not None}


class GenerationParameters(Strict):
    """Those from `top_k` on are not of OpenAI's: servers of open models have them, under these names."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=-1, le=limits.TOP_K_MAX)] | None = None  # 0 and -1: the whole vocabulary
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    chat_template_kwargs: (
        Annotated[
            dict[Variable, Value], BeforeValidator(without_nulls), Field(max_length=limits.TEMPLATE_VARIABLES_MAX)
        ]
        | None
    ) = None
    ignore_eos: bool | None = None  # for benchmarks
    # As llama.cpp and vLLM name the most tokens of reasoning, after which the answer begins; -1: as many as it takes.
    reasoning_budget: ThoughtTokens | None = None
    thinking_token_budget: ThoughtTokens | None = None

    EFFORT_PARAM: ClassVar[str]  # the path of the effort in a request
    VERBOSITY_PARAM: ClassVar[str]

    @property
    def switches(self) -> TemplateOptions:
        """The options of the chat template that the request sets."""
        raise NotImplementedError

    @property
    def effort_params(self) -> Sequence[str]:
        """The parameters that determine the effort."""
        return (self.EFFORT_PARAM,)

    @property
    def thought_tokens(self) -> int | None:
        """The most tokens of reasoning; None: no limit of the request."""
        given = self.reasoning_budget if self.thinking_token_budget is None else self.thinking_token_budget
        return None if given == -1 else given

    def note_ignored(self, known: frozenset[str], ignored: Ignored) -> None:
        """Report parameters that a template with these variables does not support."""
        switches = self.switches
        if switches.effort is not None and not have_effort(known):
            ignored.add(*self.effort_params)
        if switches.verbosity is not None and VERBOSITY not in known:
            ignored.add(self.VERBOSITY_PARAM)
        ignored.add(*(f"chat_template_kwargs.{name}" for name in switches.variables if name not in known))

    @property
    def drawn(self) -> Sampling:
        """The sampling parameters that both surfaces have in common. Those that are missing are left to the model."""
        named: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repeat_penalty": self.repetition_penalty,
        }
        given = {name: value for name, value in named.items() if value is not None}
        return Sampling(**given, ignore_eos=bool(self.ignore_eos), open=frozenset(named.keys() - given.keys()))
