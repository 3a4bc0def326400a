"""Options that both surfaces share: `include`, logprobs, `service_tier`, `metadata` and the prompt cache.

Caching is automatic here: what marks a prefix, or says how long it should last, is accepted without effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from agents.turn import Caps
from inference.generation import Priority
from worker.wire import limits
from worker.wire.strict import Id, Strict, only, without_effect

USUAL_MODE, USUAL_TTL = "implicit", "30m"  # of the public contract
Ttl: TypeAlias = Literal["30m", "12h"]
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


class Breakpoint(Strict):
    """Marks the end of a reusable prefix."""

    mode: Literal["explicit"]
    ttl: Ttl | None = None


PromptCacheBreakpoint: TypeAlias = Annotated[Breakpoint | None, without_effect("prompt_cache_breakpoint")]


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


class _Tiered(Protocol):
    """A request that may ask for a tier."""

    @property
    def service_tier(self) -> ServiceTier | None: ...

    def model_copy(self, *, update: dict[str, Any]) -> Self: ...


Asked = TypeVar("Asked", bound=_Tiered)


def entitled(asked: Asked, best: Priority) -> Asked:
    """The request, in the tier of its credential, whose turns have no better priority class than `best`."""
    tier = asked.service_tier
    if best is Priority.BATCH:
        tier = "flex"
    elif best is Priority.STANDARD and tier == "priority":
        tier = "default"
    return asked if tier == asked.service_tier else asked.model_copy(update={"service_tier": tier})


def rank_of(requested: ServiceTier | None) -> int:
    """The order in which background responses start, lowest first."""
    return {"priority": 0, "flex": 2}.get(requested or "default", 1)


def priority_of(requested: ServiceTier | None, *, watched: bool) -> Priority:
    """The priority class of a turn. `watched`: a user is reading, which matters if the tier does not decide."""
    if requested == "flex":
        return Priority.BATCH
    return Priority.INTERACTIVE if requested == "priority" or watched else Priority.STANDARD


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


def asks_for_same_bytes(metadata: dict[str, str] | None) -> bool:
    return (metadata or {}).get(DETERMINISTIC) == "true"


def wants_hints(metadata: dict[str, str] | None) -> bool:
    return (metadata or {}).get(HINTS) != "false"


def caps_of(metadata: dict[str, str] | None) -> Caps:
    """The budgets that a request sets in its metadata."""
    given = metadata or {}
    return Caps(
        steps=int(given[STEPS]) if STEPS in given else None,
        wall_clock_s=float(given[SECONDS]) if SECONDS in given else None,
        cost=float(given[COST]) if COST in given else None,
    )
