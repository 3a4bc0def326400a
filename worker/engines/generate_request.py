"""The body of `POST /inference/v1/generate` as our engine accepts it: vLLM's names, and ours in "firsttoken".

vLLM parameters that we do not support are refused if they would change the response, and ignored if they would not.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field, StringConstraints

from inference.generation import Grammar, Priority, Sampling, ThoughtLimit
from inference.remote.request_body import BOUNDARIES_MAX
from worker.wire import limits
from worker.wire.strict import Strict, Unsupported, only

GRAMMAR_CHARS_MAX = (
    1_000_000  # schemas of all tools of a turn; llguidance has limits of its own for the compiled grammar
)
PROMPT_TOKENS_MAX = 1_000_000  # the model's context is the real limit
SALT_CHARS_MAX = 256
SEED_MAX = 2**64 - 1
OUT_OF_REACH_MAX = 100  # tokens that a worker adds to its client's logit biases
DEADLINE_MS_MAX = 24 * 3600 * 1000

Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
GrammarText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=GRAMMAR_CHARS_MAX)]
TokenId: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,7}$")]
Boundary: TypeAlias = Annotated[int, Field(ge=0, le=PROMPT_TOKENS_MAX)]
Bias: TypeAlias = Annotated[float, Field(ge=-100, le=100)]


class StructuredOutputs(Strict):
    grammar: GrammarText


class SamplingParams(Strict):
    max_tokens: Annotated[int, Field(ge=1, le=limits.OUTPUT_TOKENS_MAX)] = 16  # the default of vLLM
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Share = 1.0
    top_k: Annotated[int, Field(ge=-1, le=limits.TOP_K_MAX)] = 0
    min_p: Share = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=limits.BIAS_MAX + OUT_OF_REACH_MAX)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    structured_outputs: StructuredOutputs | None = None
    detokenize: bool = False  # not supported here
    n: Annotated[Any, only(1, None)] = 1
    stop: Annotated[Any, only(None, [])] = None  # handled by the worker, which has the text
    ignore_eos: Annotated[Any, only(False, None)] = False
    min_tokens: Annotated[Any, only(0, None)] = 0
    stop_token_ids: Annotated[Any, only(None, [])] = None
    prompt_logprobs: Unsupported = None


class MarkedGrammar(Strict):
    """Constrains the response from the mark on: see `LanguageModel.prepare`."""

    text: GrammarText
    begins: Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Thinking(Strict):
    """A limit of the reasoning: see `ThoughtLimit`."""

    open: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    close: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    ends: Annotated[list[Annotated[int, Field(ge=0, le=9_999_999)]], Field(min_length=1, max_length=64)]
    begun: bool = False
    tokens: Annotated[int, Field(ge=0, le=limits.OUTPUT_TOKENS_MAX)]

    @property
    def limit(self) -> ThoughtLimit:
        return ThoughtLimit(self.open, self.close, tuple(self.ends), self.begun, self.tokens)


class Own(Strict):
    """The first token is due in `due_ms`, each further one `pace_ms` after the last; a request that `waits` is accepted
    however late it will be. `ahead`: only prefill the prompt. The first `shared` tokens contain no tenant's data, and
    the last `written` ones of `token_ids` belong to the response, which continues after them. Other prompts may part
    from this one at its `boundaries`."""

    deadline_ms: Annotated[float, Field(gt=0, le=DEADLINE_MS_MAX)] | None = None
    due_ms: Annotated[float, Field(gt=0, le=DEADLINE_MS_MAX)] | None = None
    pace_ms: Annotated[float, Field(gt=0, le=DEADLINE_MS_MAX)] | None = None
    waits: bool = False
    deterministic: bool = False
    ahead: bool = False
    shared: Annotated[int, Field(ge=0, le=PROMPT_TOKENS_MAX)] = 0
    written: Annotated[int, Field(ge=0, lt=PROMPT_TOKENS_MAX)] = 0
    boundaries: Annotated[list[Boundary], Field(max_length=BOUNDARIES_MAX)] = Field(default_factory=list)
    marked_grammar: MarkedGrammar | None = None
    thought: Thinking | None = None


class StreamOptions(Strict):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = True


class GenerateRequest(Strict):
    BULK: ClassVar[str] = "token_ids"

    request_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "generate"
    model: Annotated[str, StringConstraints(max_length=256)] | None = None  # if there is one
    token_ids: Annotated[list[int], Field(min_length=1, max_length=PROMPT_TOKENS_MAX)]
    sampling_params: SamplingParams
    stream: Literal[True]
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, StringConstraints(max_length=SALT_CHARS_MAX)] = ""
    priority: Annotated[int, Field(ge=0, le=max(Priority))] = Priority.STANDARD
    features: Unsupported = None
    kv_transfer_params: Unsupported = None
    firsttoken: Own = Own()

    @property
    def grammar(self) -> tuple[str, str] | None:
        """Its text and its mark, if the response is constrained."""
        if (marked := self.firsttoken.marked_grammar) is not None:
            return marked.text, marked.begins
        structured = self.sampling_params.structured_outputs
        return None if structured is None else (structured.grammar, "")

    def sampling(self, grammar: Grammar | None) -> Sampling:
        params = self.sampling_params
        return Sampling(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repeat_penalty=params.repetition_penalty,
            seed=params.seed,
            logit_bias={int(token): bias for token, bias in (params.logit_bias or {}).items()},
            deterministic=self.firsttoken.deterministic,
            top_logprobs=params.logprobs,
            grammar=grammar,
            thought=self.firsttoken.thought.limit if self.firsttoken.thought else None,
        )
