"""The body of POST /v1/completions: raw text that the model continues."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, TypeAlias
from uuid import UUID

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from agents.turn import Turn
from inference.prompt import Segment, TemplateOptions
from worker.wire import limits
from worker.wire.chat_request import ChoicesRequest, apart
from worker.wire.options import TOP_MAX
from worker.wire.strict import Ignored, Text
from worker.wire.text_inputs import Token, each_of, form, together

TOKENS_USUAL = 16  # the default of the public contract
PROMPT_TOKENS_MAX = 262_144  # of all token arrays together: more than any supported context
PROMPTS_MAX = 32  # each of them, times `n`, is a turn in progress
ECHOED_TOP_MAX = 5  # likely tokens at each position of an echoed prompt, the limit of the public contract

TokenIds: TypeAlias = Annotated[list[Token], Field(min_length=1, max_length=PROMPT_TOKENS_MAX, fail_fast=True)]


_SEVERAL = Field(min_length=1, max_length=PROMPTS_MAX)
Prompt: TypeAlias = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], _SEVERAL, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], _SEVERAL, together(PROMPT_TOKENS_MAX), Tag("arrays")],
    Discriminator(form),
]


class CompletionRequest(ChoicesRequest):
    """`parse_special`, as in llama-server: whether marks of control tokens in the text become control tokens. They do
    unless it is false, because a prompt written by hand contains them as well."""

    EFFORT_PARAM: ClassVar = "reasoning_effort"
    VERBOSITY_PARAM: ClassVar = "verbosity"
    PROMPT_PARAM: ClassVar = "prompt"
    BULK: ClassVar = "prompt"

    prompt: Prompt
    suffix: Text | None = None
    parse_special: bool | None = None

    max_tokens: Annotated[int, Field(ge=0, le=limits.OUTPUT_TOKENS_MAX)] | None = None  # 0: only the prompt
    logprobs: Annotated[int, Field(ge=0, le=TOP_MAX)] | None = None

    n: Annotated[int, Field(ge=1, le=limits.CHOICES_MAX)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    echo: bool | None = None
    stream: bool | None = None

    @field_validator("best_of")
    @classmethod
    def _shows_all(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value != (info.data.get("n") or 1):
            raise ValueError("all choices are returned here: leave it out, or send the value of n")
        return value

    @field_validator("echo")
    @classmethod
    def _scores_few(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and (info.data.get("logprobs") or 0) > ECHOED_TOP_MAX:
            raise ValueError(f"with echo, logprobs may be at most {ECHOED_TOP_MAX}")
        return value

    @field_validator("stream")
    @classmethod
    def _scores_whole(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("echo") and info.data.get("logprobs") is not None:
            raise ValueError("the log probabilities of a prompt come at once: leave out stream, echo or logprobs")
        return value

    @field_validator("n")
    @classmethod
    def _is_bounded(cls, value: int | None, info: ValidationInfo) -> int | None:
        if (value or 1) * len(each_of(info.data.get("prompt", ""))) > PROMPTS_MAX:
            raise ValueError(f"at most {PROMPTS_MAX} choices per request are possible, n for each prompt")
        return value

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each a text, or token ids."""
        return each_of(self.prompt)

    @property
    def choices(self) -> int:
        """Of each prompt."""
        return self.n or 1

    def note_ignored(self, known: frozenset[str], ignored: Ignored) -> None:
        """Text that goes on as it is has no template, and no reasoning that could be told from an answer."""
        super().note_ignored(frozenset(), ignored)
        budgets = ("reasoning_budget", "thinking_token_budget")
        ignored.add(*(name for name in budgets if getattr(self, name) is not None))

    @property
    def switches(self) -> TemplateOptions:
        return TemplateOptions(variables=self.chat_template_kwargs or {})

    def turns(self, tenant_id: UUID, prompt: tuple[Segment, ...]) -> list[Turn]:
        """One for each choice of a prompt, which differ only in their seed."""
        turn = Turn(
            tenant_id=tenant_id,
            input=(),
            prompt=prompt,
            sampling=replace(
                self._sampling(max_tokens=self._tokens_max, top_logprobs=self.logprobs),
                scores_prompt=bool(self.echo) and self.logprobs is not None,
            ),
            stop=tuple(self.stop or ()),
            caps=replace(self.caps, tokens=self._tokens_max),
        )
        return [apart(turn, index) for index in range(self.choices)]

    @property
    def _tokens_max(self) -> int:
        return TOKENS_USUAL if self.max_tokens is None else self.max_tokens
