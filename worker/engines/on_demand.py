"""A chat model whose engine is loaded on demand. Its vocabulary and template are there from the start: they take
milliseconds and hardly any memory, so prompts are counted and validated, and errors reported, before its weights are
loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Literal, TypeAlias

from inference.codec import Codec
from inference.errors import EngineStopped, InferenceError, ModelAway, NoRoom
from inference.generation import ANY_TERMS, Due, Generation, Priority, Sampling, Terms
from inference.llama import FileVersion, LlamaModel
from inference.model import ChatModel
from inference.prompt import NO_OPTIONS, ChatMessage, Rendered, Value
from inference.text_model import TextModel

State: TypeAlias = Literal["loaded", "loading", "not_loaded"]

log = logging.getLogger("firsttoken.models")

# A user who is only typing does not reload a model that has just been evicted: two users writing to different models
# would otherwise have them loaded in turns without asking either.
AWAY_S = 30.0
BEGINNINGS_MAX = 512  # shared prefixes that are recomputed after a load: those of the configuration


class OnDemandModel(TextModel):
    """A `LanguageModel`, and its own `OnDemand`. `weights` were loaded without tensors, and `codec` may be that of
    another model; `opened` opens the engine, after making room for it, and is never called concurrently.

    Tokenization uses the vocabulary, which stays loaded: a thread may be tokenizing while the engine is unloaded.
    """

    def __init__(
        self,
        name: str,
        weights: LlamaModel,
        context: int,
        opened: Callable[[OnDemandModel], Awaitable[ChatModel]],
        codec: Codec | None = None,
        *,
        sees: bool = False,
    ) -> None:
        """`sees`: whether its engine has a projector."""
        super().__init__(weights, b"", context, codec)
        self.name, self._sees = name, sees
        self.files: tuple[FileVersion, ...] = ()  # that its engine is made of, as they were when it was prepared
        self.share_loaded = 0.0  # from 0 to 1, while it is loading
        self.used_at = float("-inf")  # on the monotonic clock
        self._left_at = float("-inf")  # on the monotonic clock
        self._opened = opened
        self._model: ChatModel | None = None
        self._loading: asyncio.Task[None] | None = None
        self._users = 0
        self._beginnings: dict[tuple[int, ...], None] = {}  # in the order in which they were shared

    def __repr__(self) -> str:
        return f"<OnDemandModel {self.name} {self.state} | {self._users} users>"

    # --- loading and unloading ---

    @property
    def state(self) -> State:
        if self.is_loaded:
            return "loaded"
        return "loading" if self._loading is not None else "not_loaded"

    @property
    def is_loaded(self) -> bool:
        """A model whose engine failed counts as not loaded: it is opened again."""
        return self._model is not None and (not self._model.failed or self._model.lost)

    @property
    def is_idle(self) -> bool:
        """Loaded, and no request uses or awaits it."""
        return self._model is not None and not self._users and not self._model.is_busy

    @property
    def is_unused(self) -> bool:
        """No request uses or awaits it, loaded or not."""
        return not self._users and self._loading is None and (self._model is None or not self._model.is_busy)

    @property
    def lost(self) -> bool:
        return self._model is not None and self._model.lost

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self._users += 1
        self.used_at = monotonic()
        try:
            yield
        finally:
            self._users -= 1
            self.used_at = monotonic()

    async def load(self) -> None:
        """Return when it can answer. It is loaded once for all waiting callers, and the load continues if they leave.

        Raises NoRoom, and ModelAway, whose cause is for the operator.
        """
        self._begin()
        if self._loading is not None:
            await asyncio.shield(self._loading)

    def foresee(self) -> None:
        """Start to load it in advance, unless it was unloaded a moment ago."""
        if monotonic() - self._left_at >= AWAY_S:
            self._begin()

    def _begin(self) -> None:
        if not self.is_loaded and self._loading is None:
            self._loading = asyncio.create_task(self._load(), name=f"load:{self.name}")
            self._loading.add_done_callback(self._loaded)

    async def unload(self) -> None:
        """Release its memory. Only while it is idle, or when the worker ends."""
        model, self._model = self._model, None
        if model is not None:
            self._left_at = monotonic()
            await model.close()

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._loading
        await self.unload()
        await super().close()

    async def _load(self) -> None:
        await self.unload()  # of an engine that failed
        self.share_loaded = 0.0
        try:
            model = await self._opened(self)
        except NoRoom:
            raise
        except (InferenceError, OSError) as error:  # also a file that this user may not read
            log.warning("the model %s could not be loaded: %s", self.name, error)
            raise ModelAway(self.name) from error
        self.context_length = model.context_length  # less, where memory is short
        self._model, self.used_at = model, monotonic()

    def _loaded(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled():
            task.exception()  # the waiting callers get it, if there are any

    @property
    def beginnings(self) -> Sequence[Sequence[int]]:
        """The prefixes shared by all tenants, to be prefilled before the first request."""
        return tuple(self._beginnings)

    # --- as a LanguageModel ---

    @property
    def sees(self) -> bool:
        return self._sees

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Value] = NO_OPTIONS,
        *,
        salt: str = "",
    ) -> Rendered:
        """If it is loaded, the exact tokens of generated turns are available as well."""
        if self._model is not None:
            return self._model.render(messages, tools, switches, salt=salt)
        return super().render(messages, tools, switches, salt=salt)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> Generation:
        if self._model is None:
            raise EngineStopped(f"the model {self.name} is not loaded")
        return self._model.generate(prompt, sampling, terms)

    @property
    def prefill_token_s(self) -> float | None:
        return self._model.prefill_token_s if self._model else None

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        """The duration of a load is not forecast: a request for a model that has to be loaded waits for it."""
        if self._model is not None:
            self._model.expect(due, salt=salt, priority=priority)

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> Generation | None:
        return self._model.prefill_ahead(prompt, salt=salt, exact=exact) if self._model else None

    def share(self, beginning: Sequence[int]) -> None:
        if len(self._beginnings) < BEGINNINGS_MAX:
            self._beginnings[tuple(beginning)] = None
        if self._model is not None:
            self._model.share(beginning)

    def remember(self, message: ChatMessage, ids: Sequence[int], *, salt: str = "") -> bytes | None:
        return self._model.remember(message, ids, salt=salt) if self._model else None

    @property
    def failed(self) -> str | None:
        """Why it cannot answer; None for a failure that the next request repairs by opening the engine again."""
        return self._model.failed if self._model and self._model.lost else None

    @property
    def steps(self) -> int:
        return self._model.steps if self._model else 0

    def stats(self) -> dict[str, Any]:
        return self._model.stats() if self._model else {}
