"""Retrieval before the answer, for the file_search tool of a request, and as a tool, in the middle of a turn.

A question that depends on earlier messages is rewritten to be self-contained. The task is that of CANARD ("Can You
Unpack That?", Elgohary et al. 2019), done by a small model within a time limit: the first token waits for it. If
anything fails, the original question is searched for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate

from agents.errors import InvalidTurn
from agents.events import Usage
from agents.message import FileSearchCall, Item, Message
from agents.prompt import numbered, question
from agents.router import Candidate
from agents.tool import Tool, ToolContext, ToolError, tool
from agents.turn import Turn
from inference.errors import InferenceError
from inference.generation import Finish, Generation, Sampling, Terms
from inference.prompt import THINKING, ChatMessage
from inference.trace import Trace, now_ns
from retrieval.errors import RetrievalError
from retrieval.passage import Passage
from retrieval.query import Query, Searcher

INSTRUCTIONS = (
    "You are given a conversation and its last question. Rewrite the last question so that it can be understood "
    "without the conversation: put names in the place of words that refer to them. Write the question alone."
)
MESSAGES_MAX = 6  # a question usually depends on the messages just before it
MESSAGE_CHARS_MAX = 500
QUERY_TOKENS_MAX = 64
QUERY_CHARS_MAX = 400  # more text is not a question, but an answer to it
REWRITING_MS_MAX = 500.0
RETRIEVAL_SHARE = 0.5  # of the time for the search, at most
# Of the time from the request to its first token, when the prompt is to be read; the rest is a margin for what nobody
# foresees. Who asks again waits less patiently, and the answer before it says much of what passages would.
READ_BY, LATER_READ_BY = 0.9, 0.6
# New tokens beside the text of passages, by estimate: the words and marks around the question, those around each
# passage, and one for so many characters of a question or a title.
FRAME_TOKENS, PASSAGE_FRAME_TOKENS, TOKEN_CHARS = 14, 8, 4
DEFAULT_STORES = ("docs",)  # for requests without a store; filled at the first start
PASSAGES_MAX = 5


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The rewritten query, the model that wrote it, and the engine time that this took."""

    query: str
    usage: Usage = field(default_factory=Usage)
    candidate: Candidate | None = None
    took_ms: float = 0.0


async def rewritten(turn: Turn, candidate: Candidate | None, trace: Trace) -> Rewriting:
    """The question of the turn, rewritten if there are earlier messages and a model for that."""
    asked = question(turn)
    if candidate is None or not asked:
        return Rewriting(asked)
    before = _before(turn)
    if not any(message.role == "user" for message in before):
        return Rewriting(asked)
    if candidate.on_demand is not None and not candidate.is_loaded:
        candidate.on_demand.foresee()
        return Rewriting(asked)
    began_ns, generation, said = now_ns(), None, list[str]()
    with trace.span("rewrite", model=candidate.name) as span, ExitStack() as held:
        try:
            async with asyncio.timeout(min(REWRITING_MS_MAX, RETRIEVAL_SHARE * turn.limits.retrieval_ms) / 1e3):
                await candidate.ready(trace, held)
                generation = _ask(turn, candidate, before, asked)
                await generation.stream(lambda delta: said.append(delta.text))
            reason = "" if generation.finish is Finish.STOP else str(generation.finish)
        except TimeoutError:
            reason = "late"
        except InferenceError as error:
            reason = type(error).__name__
        finally:
            if generation is not None:
                generation.cancel()
        query = " ".join("".join(said).split())
        reason = reason or ("" if _may_be_question(query) else "no question")
        span.attributes |= {"used": not reason, **({"reason": reason} if reason else {})}
    return Rewriting(asked if reason else query, _usage(generation), candidate, (now_ns() - began_ns) / 1e6)


def _may_be_question(text: str) -> bool:
    """A model that is too small for the task repeats the conversation."""
    return 0 < len(text) <= QUERY_CHARS_MAX and not text.startswith(("user:", "assistant:"))


def _ask(turn: Turn, candidate: Candidate, before: Sequence[Message], asked: str) -> Generation:
    """Raises InferenceError."""
    model = candidate.model
    lines = [f"{message.role}: {_short(message.text)}" for message in before]
    conversation = "\n".join([*lines, "", f"Last question: {_short(asked)}"])
    switches = {**candidate.switches, **{name: False for name in THINKING if name in model.switches}}
    messages = [ChatMessage("system", INSTRUCTIONS), ChatMessage("user", conversation)]
    prompt = model.encode(model.render(messages, (), switches, salt=turn.salt), salt=turn.salt)
    sampling = Sampling(max_tokens=QUERY_TOKENS_MAX, temperature=0.0)
    return model.generate(prompt, sampling, Terms(salt=turn.salt, priority=turn.priority, traceparent=""))


def _before(turn: Turn) -> list[Message]:
    """The messages before the last question, the newest of them."""
    items: Sequence[Item] = (*turn.history, *turn.input)
    said = [item for item in items if isinstance(item, Message) and item.role in ("user", "assistant")]
    last = max((at for at, message in enumerate(said) if message.role == "user"), default=0)
    return said[max(0, last - MESSAGES_MAX) : last]


def _short(text: str) -> str:
    return " ".join(text[:MESSAGE_CHARS_MAX].split())


def _usage(generation: Generation | None) -> Usage:
    if generation is None:
        return Usage()
    return Usage(
        generation.prompt_tokens, generation.facts.cached_tokens, len(generation.ids), spent=generation.facts.spent
    )


def query_of(turn: Turn, text: str) -> Query | None:
    """The search of a turn for this text; None if there is nothing to search, or to search for."""
    asked = turn.file_search
    if asked is None or not text:
        return None
    return Query(
        turn.tenant_id,
        text,
        asked.vector_store_ids,
        asked.max_num_results,
        asked.score_threshold,
        asked.filters,
    )


async def search(turn: Turn, searcher: Searcher | None, trace: Trace, rewriting: Rewriting) -> list[Passage]:
    """Passages for the question of a turn; none without one, or if nothing is relevant enough.

    Raises InvalidTurn without a searcher, StoreNotFound for an unknown store.
    """
    asked, query = turn.file_search, query_of(turn, rewriting.query)
    if asked is None or query is None:
        return []
    if searcher is None:
        raise InvalidTurn("file_search is not available here.", param="tools")
    try:
        return await searcher.retrieve(query, trace, turn.limits.retrieval_ms - rewriting.took_ms)
    except RetrievalError as error:
        error.param = asked.param
        raise


def passage_tokens_max(turn: Turn, began_ns: int, token_s: float | None) -> int | None:
    """Tokens of passages, with their titles, that a model which reads one in `token_s` reads from now on in time for
    the first token; None: no limit. A deterministic turn has none, as its passages must not depend on how fast the
    machine was."""
    due_ns = turn.due.at_ns
    if due_ns is None or not token_s or turn.sampling.deterministic:
        return None
    share = LATER_READ_BY if turn.history else READ_BY
    left_s = (share * (due_ns - began_ns) - (now_ns() - began_ns)) / 1e9
    return max(0, int(left_s / token_s) - FRAME_TOKENS - len(question(turn)) // TOKEN_CHARS)


def best_within(passages: Sequence[Passage], tokens_max: int | None) -> list[Passage]:
    """The best passages of at most so many tokens, and always the very best one: without it, the search was in vain."""
    if tokens_max is None:
        return list(passages)
    fitting = sum(tokens <= tokens_max for tokens in accumulate(map(_prompt_tokens, passages)))
    return list(passages[: max(1, fitting)])


def _prompt_tokens(passage: Passage) -> int:
    return passage.tokens + PASSAGE_FRAME_TOKENS + len(passage.title) // TOKEN_CHARS


def found(query: str, passages: Sequence[Passage]) -> FileSearchCall:
    """The search as an item."""
    return FileSearchCall((query,) if query else (), tuple(passages))


def search_documents(searcher: Searcher) -> Tool:
    async def search_documents(query: str, context: ToolContext) -> str:
        """Search the user's documents and return passages.

        Args:
            query: What to search for
        """
        try:
            wanted = Query(context.tenant_id, query, context.stores or DEFAULT_STORES, PASSAGES_MAX)
            passages = await searcher.retrieve(wanted, Trace())
        except RetrievalError as error:
            raise ToolError(str(error)) from None
        return numbered((context.cite(passage), passage) for passage in passages) or "No passages found."

    return tool(idempotent=True)(search_documents)
