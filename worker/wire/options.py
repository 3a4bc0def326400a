"""Options that the APIs share: sampling and the chat template, `include`, logprobs, `service_tier`, `metadata` and the
prompt cache. For programs whose client library controls the body, some of them also come in headers of ours. And the
format that an answer must have: text, any JSON object, or JSON that matches a schema, which two APIs spell differently.

Caching is automatic here: what marks a prefix, or says how long it should last, is accepted without effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from agents.turn import AnswerFormat, Caps
from inference.generation import DRAWN, Priority, Sampling
from inference.grammar.calls import ANY_OBJECT
from inference.prompt import VERBOSITY, TemplateOptions, have_effort
from worker.edge.limit_settings import REFUSE, WAIT
from worker.errors import invalid
from worker.wire import limits
from worker.wire.function_tools import Description, bounded, constrainable
from worker.wire.strict import Id, Ignored, ModelName, Name, Strict, Tagged, Ttl, note, only, without_effect

USUAL_MODE, USUAL_TTL = "implicit", "30m"  # of the public contract
RESULTS = "file_search_call.results"
LOGPROBS = "message.output_text.logprobs"
# Our own events, sent only on request: strict clients reject events that the public contract does not name, although it
# allows them.
SOURCES = "firsttoken:sources"
TRACE = "firsttoken:trace"
# Of the items of a conversation.
RESPONSE_ID, VERSIONS, FEEDBACK = "firsttoken:response_id", "firsttoken:versions", "firsttoken:feedback"
# Values of the public contract for parts of items that this server never creates: accepted without effect.
WITHOUT_EFFECT = frozenset(
    {
        "reasoning.encrypted_content",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)

INCLUDABLE = frozenset({RESULTS, LOGPROBS, SOURCES, TRACE}) | WITHOUT_EFFECT
INCLUDABLE_OF_ITEMS = INCLUDABLE | {RESPONSE_ID, VERSIONS, FEEDBACK}

# Keys of `metadata` that are options of our own.
DETERMINISTIC = "deterministic"  # "true": the same prompt and seed give the same bytes
SURFACE = "firsttoken:surface"  # where the answer is used, from a header
HINTS = "firsttoken:hints"  # "false": the prompt gets no words about the format or a required tool, from a header
LATE = "firsttoken:late"  # the policy for a request whose first token will be late, from a header
STEPS, SECONDS, COST = "max_steps", "max_seconds", "max_cost"  # budgets of the turn that have no field of their own

TOP_MAX = 20  # of top_logprobs, in the public contract

Include: TypeAlias = Annotated[
    list[Annotated[str, only(RESULTS, LOGPROBS, SOURCES, TRACE, *sorted(WITHOUT_EFFECT))]], Field(max_length=16)
]
# The padding of a stream, and how long a prompt stays cached, do not change an answer.
Obfuscation: TypeAlias = Annotated[bool | None, without_effect("stream_options.include_obfuscation", False)]
CacheRetention: TypeAlias = Annotated[
    Literal["in_memory", "24h"] | None, without_effect("prompt_cache_retention", "in_memory")
]
StopSequence: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=limits.STOP_CHARS_MAX)]
OutputTokens: TypeAlias = Annotated[int, Field(ge=1, le=limits.OUTPUT_TOKENS_MAX)]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=TOP_MAX)]
# Names of the public contract for tiers that are one here. The answer names the tier that it got.
SAME_TIER = {"fast": "priority", "ultrafast": "priority", "scale": "default"}
Served: TypeAlias = Literal["auto", "default", "flex", "priority"]
ServiceTier: TypeAlias = Annotated[
    Served,
    BeforeValidator(
        lambda asked: SAME_TIER.get(asked, asked) if isinstance(asked, str) else asked,
        json_schema_input_type=Literal[Served, "fast", "ultrafast", "scale"],
    ),
]


class PromptCacheOptions(Strict):
    mode: Annotated[Literal["implicit", "explicit"] | None, without_effect("prompt_cache_options.mode", USUAL_MODE)] = (
        None
    )
    ttl: Annotated[Ttl | None, without_effect("prompt_cache_options.ttl", USUAL_TTL)] = None

    def echo(self) -> dict[str, Any]:
        return {"mode": self.mode or USUAL_MODE, "ttl": self.ttl or USUAL_TTL}


class ResponseCacheOptions(PromptCacheOptions):
    prewarm: bool | None = None  # only read the prompt
    comparison_response_id: Id | None = None  # see `worker.runs.cache_diagnostics`

    def echo(self) -> dict[str, Any]:
        compared = {"comparison_response_id": self.comparison_response_id} if self.comparison_response_id else {}
        return {**super().echo(), **compared}


def tier_used(requested: ServiceTier | None) -> ServiceTier:
    """The tier that the response reports: the server's choice if the client left it open."""
    return "default" if requested in (None, "auto") else requested


def _budgets_are_numbers(metadata: dict[str, str]) -> dict[str, str]:
    for key in (STEPS, SECONDS, COST):
        value = metadata.get(key)
        if value is not None and not _is_positive(value, whole=key == STEPS):
            raise ValueError(f"'{key}' is a budget of the turn: it must be a positive number")
    return metadata


def _is_positive(text: str, *, whole: bool) -> bool:
    digits = text if whole else text.replace(".", "", 1)
    return digits.isascii() and digits.isdigit() and len(digits) <= limits.BUDGET_DIGITS_MAX and float(text) > 0


Metadata: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=limits.METADATA_KEY_MAX)],
        Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)],
    ],
    Field(max_length=limits.METADATA_PAIRS_MAX),
    AfterValidator(_budgets_are_numbers),
]


IN_METADATA = {
    "X-Firsttoken-Deterministic": DETERMINISTIC,
    "X-Firsttoken-Surface": SURFACE,
    "X-Firsttoken-Late": LATE,
    "X-Firsttoken-Hints": HINTS,
}

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
# 0 and -1: the whole vocabulary.
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=limits.TOP_K_MAX), AfterValidator(lambda count: max(0, count))]
TokenId: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,7}$")]
Bias: TypeAlias = Annotated[float, Field(ge=-100, le=100)]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
Variable: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ThoughtTokens: TypeAlias = Annotated[int, Field(ge=-1, le=limits.OUTPUT_TOKENS_MAX)]
Value: TypeAlias = bool | int | float | Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)]


def without_nulls(variables: Any) -> Any:
    if not isinstance(variables, dict):
        return variables
    return {name: value for name, value in variables.items() if value is not None}


class SamplingParameters(Strict):
    """How tokens are drawn, in requests of all APIs and in those to engines: see DRAWN. Those from `top_k` on are not
    of OpenAI's."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None

    def drawn(self, **more: Any) -> Sampling:
        """Those that are missing are left to the model. `more`: other fields."""
        values = vars(self)
        given = {name: value for name, spelled in DRAWN.items() if (value := values[spelled]) is not None}
        return Sampling(**given, **more, open=frozenset(DRAWN.keys() - given.keys()))


class GenerationParameters(SamplingParameters):
    """What all APIs take, under the names of servers of open models."""

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

    PROMPT_PARAM: ClassVar[str] = "input"  # what mistakes in the prompt are told of
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

    def drawn(self, **more: Any) -> Sampling:
        return super().drawn(ignore_eos=bool(self.ignore_eos), **more)


class TurnRequest(GenerationParameters):
    """A request whose turns have options in its metadata, or in headers."""

    model: ModelName | None = None
    metadata: Metadata | None = None

    def with_headers(self, headers: Mapping[str, str], surfaces: Collection[str]) -> Self:
        """The request as if it contained the options: they are stored and returned in the same way. `surfaces` are the
        allowed names. Raises ApiError 400."""
        allowed: dict[str, Collection[str]] = {
            DETERMINISTIC: ("true", "false"),
            SURFACE: surfaces,
            LATE: (REFUSE, WAIT),
            HINTS: ("true", "false"),
        }
        said: dict[str, str] = {}
        for header, pair in IN_METADATA.items():
            value = headers.get(header)
            if value is None:
                continue
            if value not in allowed[pair]:
                raise invalid(header, f"it must be one of {', '.join(allowed[pair])}.")
            said[pair] = value
        pairs = self.options | said
        if len(pairs) > limits.METADATA_PAIRS_MAX:
            raise invalid("metadata", f"with the headers it has more than {limits.METADATA_PAIRS_MAX} pairs.")
        return self.model_copy(update={"metadata": pairs}) if said else self

    @property
    def tier(self) -> ServiceTier | None:
        """Not all APIs have one that says how urgent a request is."""
        return None

    def priority(self, *, watched: bool) -> Priority:
        """The priority class that it asks for. `watched`: a user is reading, which matters if the tier does not
        decide."""
        if self.tier == "flex":
            return Priority.BATCH
        return Priority.INTERACTIVE if self.tier == "priority" or watched else Priority.STANDARD

    @property
    def conversation_id(self) -> str | None:
        """Only responses may be part of one."""
        return None

    @property
    def options(self) -> dict[str, str]:
        return self.metadata or {}

    @property
    def deterministic(self) -> bool:
        return self.options.get(DETERMINISTIC) == "true"

    @property
    def hints(self) -> bool:
        """Whether the prompt gets words about the format and required tools."""
        return self.options.get(HINTS) != "false"

    @property
    def caps(self) -> Caps:
        """The budgets that the request sets in its metadata."""
        given = self.options
        return Caps(
            steps=int(given[STEPS]) if STEPS in given else None,
            seconds=float(given[SECONDS]) if SECONDS in given else None,
            cost=float(given[COST]) if COST in given else None,
        )


class TieredRequest(TurnRequest):
    service_tier: ServiceTier | None = None

    @property
    def tier(self) -> ServiceTier | None:
        return self.service_tier

    def entitled(self, best: Priority) -> Self:
        """In the tier of its credential, whose turns have no better priority class than `best`."""
        tier = self.service_tier
        if best is Priority.BATCH:
            tier = "flex"
        elif best is Priority.STANDARD and tier == "priority":
            tier = "default"
        return self if tier == self.service_tier else self.model_copy(update={"service_tier": tier})


BoundedSchema: TypeAlias = Annotated[dict[str, Any], AfterValidator(bounded)]
AnswerSchema: TypeAlias = Annotated[BoundedSchema, AfterValidator(constrainable)]


class PlainText(Strict):
    type: Literal["text"] = "text"

    def answer(self, param: str) -> AnswerFormat | None:
        return None

    def echo(self) -> dict[str, Any]:
        return {"type": self.type}


class AnyJson(Strict):
    type: Literal["json_object"]

    def answer(self, param: str) -> AnswerFormat | None:
        return AnswerFormat(ANY_OBJECT, param)

    def echo(self) -> dict[str, Any]:
        return {"type": self.type}


class NamedSchema(Strict):
    """With `strict`, answers always match the schema, or it is refused. Otherwise what no grammar can enforce of it is
    ignored, and reported as that."""

    place: ClassVar[str] = "response_format.json_schema.schema"

    name: Name
    strict: bool | None = None  # before the schema, whose validation depends on it
    body: BoundedSchema = Field(alias="schema")
    description: Description | None = None

    @field_validator("body")
    @classmethod
    def _is_enforced(cls, body: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        try:
            return constrainable(body)
        except ValueError:
            if info.data.get("strict"):
                raise
            note(info, cls.place)
            return body


class SchemaFormat(NamedSchema):
    """The format of /v1/responses."""

    place: ClassVar[str] = "text.format.schema"

    type: Literal["json_schema"]

    def answer(self, param: str) -> AnswerFormat | None:
        return AnswerFormat(self.body, param, strict=bool(self.strict))

    def echo(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.body,
            "strict": bool(self.strict),
        }


class NestedSchemaFormat(Strict):
    """The format of chat completions."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    def answer(self, param: str) -> AnswerFormat | None:
        return AnswerFormat(self.json_schema.body, param, strict=bool(self.json_schema.strict))


_BY_TYPE = Tagged("A format must have the type text, json_object or json_schema.")
TextFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaFormat, _BY_TYPE]
ChatFormat: TypeAlias = Annotated[PlainText | AnyJson | NestedSchemaFormat, _BY_TYPE]
