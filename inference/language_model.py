"""A chat model as the agent loop sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from inference.adapter import Adapter
from inference.generation import ANY_TERMS, Due, Generation, Grammar, Priority, Sampling, Terms
from inference.message_fitting import Capabilities
from inference.prompt import NO_OPTIONS, ChatMessage, PromptTokens, Rendered, Segment, Value, Verdict
from inference.sampling_defaults import SamplingDefaults


class LanguageModel(Protocol):
    """What the agent loop needs of a chat model; `inference.model.ChatModel` is the real one.

    `salt` names the tenant throughout: what is kept for one tenant is used for no other.
    """

    name: str
    context_length: int
    chat_template: str  # its text determines the format of tool calls
    capabilities: Capabilities  # of the chat template
    shares_turns: bool  # whether other workers may know turns of its conversations that this one does not
    sampling_defaults: SamplingDefaults  # of the model file
    adapters: Sequence[Adapter]  # LoRA
    measures: Mapping[str, int]  # of the model file, in llama.cpp's names: n_ctx_train, n_params, n_vocab, n_embd, size
    ends: tuple[str, str]  # the marks of the tokens for the beginning and the end of a text; empty without one

    @property
    def prefill_token_s(self) -> float | None:
        """Seconds to prefill one token with nothing beside it, as measured; None where that is not known."""

    @property
    def sees(self) -> bool:
        """Whether prompts may have images."""

    @property
    def switches(self) -> frozenset[str]:
        """Variables of the chat template that a request may set: see `inference.prompt`."""

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Value] = NO_OPTIONS,
        *,
        salt: str = "",
    ) -> Rendered:
        """Apply the chat template. `tools` are OpenAI function tools: {"type":"function","function":{...}}.

        Raises InvalidTemplate, and UnseenPicture for images that the model cannot see."""

    def default_system(self) -> str:
        """The system message that the chat template writes if there is none; empty if it writes none."""

    def encode(self, segments: Sequence[Segment], *, salt: str = "") -> PromptTokens:
        """Raises TextTooLong if the text is too long whatever its tokens; it is then not tokenised."""

    def count(self, text: str, *, salt: str = "") -> int:
        """Number of tokens of untrusted text; for a text that cannot fit the context, any number above it."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of a text on its own; they are not cached. `add_special`: add the model's tokens for the start and
        end; `parse_special`: markers of control tokens become these tokens. Thread-safe."""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token; control tokens as their markers. Raises UnknownToken."""

    def text_pieces(self, ids: Sequence[int], *, over: bool = False) -> list[str]:
        """The text that an answer of these tokens emits with each of them; `over`: with the text flushed at its end.
        Raises UnknownToken."""

    def infill(self, before: str, behind: str) -> list[Segment] | None:
        """The prompt for the text between two others; None for a model that was not trained to infill."""

    def verdict(
        self, segments: Sequence[Segment], prompt: PromptTokens, generation: Generation, *, salt: str = ""
    ) -> Verdict | None:
        """Why no more of the prompt was reused; None before the generation was admitted."""

    def prepare(self, grammar: str, trigger: str = "", *, salt: str = "") -> Grammar:
        """Compile a grammar (see `inference.grammar`), of a tenant that `salt` names. Takes milliseconds; thread-safe.

        With a `trigger`, the text before it is free, and the grammar must allow any: it is then only an aid, and is
        dropped if it is too large or matches nothing. Raises InvalidSchema.
        """

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> Generation:
        """Submit a prompt. Raises PromptTooLong, QueueFull, Late, EngineStopped, either here or from `admitted`."""

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        """Raises Late if not even the shortest prompt could meet `due`, so that no work is done in vain."""

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> Generation | None:
        """Prefill the prefix of a future prompt; nothing is generated. `exact`: for a deterministic request.

        The prompt itself continues from wherever this is when it is submitted. Cancel it if no prompt will come. None
        if it would not help: the prefix is too short or too long, or the model is busy with requests.
        """

    def share(self, beginning: Sequence[int]) -> None:
        """Share a prefix without any tenant's data between all salts."""

    def remember(self, message: ChatMessage, ids: Sequence[int], *, salt: str = "") -> bytes | None:
        """Keep the exact tokens of an assistant turn, so that rendering it again never breaks the prefix. If another
        worker may continue the conversation, returns the digest under which it looks the tokens up."""

    def unknown(self, messages: Sequence[ChatMessage], *, salt: str = "") -> list[bytes]:
        """The digests of turns whose tokens another worker may have remembered; each is reported once."""

    def learn(self, turns: Iterable[tuple[bytes, tuple[int, ...]]]) -> None:
        """Load what other workers remembered under these digests."""
