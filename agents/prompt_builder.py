"""The prompts of a turn's steps: rendered, tokenized, and shortened where the caller allows it until an answer fits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from agents.errors import InvalidTurn
from agents.message import FunctionCall, Item, Message, pictures_in
from agents.parser.dialect import Dialect, Format
from agents.progress import Progress
from agents.prompt import assemble, before_question, bytes_of, decoded, renders_fast, shortened
from agents.router import Candidate
from agents.toolbox import AvailableTools, Toolbox
from agents.tools.tool_search import tool_search
from agents.turn import Turn
from inference.errors import TextTooLong, UnseenPicture
from inference.picture import Picture, Pixels
from inference.prompt import Part, PromptTokens, Rendered, Segment
from retrieval.passage import Passage

# The pixels of a tenant's picture. Raises UnseenPicture.
DecodePicture: TypeAlias = Callable[[UUID, Picture], Awaitable[Pixels]]

# Of all pictures of a prompt, which are held until it is computed: 30 screens of a page.
PIXEL_BYTES_MAX = 120_000_000
# Tokenizing this many takes a few milliseconds; longer text would block the event loop for all requests.
ENCODE_CHARS_MAX = 10_000
# Of a prediction, for each token of the context: those of texts and code have three or four, indentation more.
PREDICTED_CHARS_MAX = 16


class PromptBuilder:
    def __init__(self, toolbox: Toolbox, decode_picture: DecodePicture | None) -> None:
        self._toolbox, self._decode_picture = toolbox, decode_picture

    def tools_of(self, turn: Turn) -> Toolbox:
        if not (turn.tool_searches or turn.servers):
            return self._toolbox
        searches = [tool_search(search, turn.functions) for search in turn.tool_searches]
        return self._toolbox.including([*searches, *(tool for server in turn.servers for tool in server.tools)])

    def offer(
        self, turn: Turn, candidate: Candidate, output: Sequence[Item] = (), made: AvailableTools | None = None
    ) -> AvailableTools:
        """`made` was made for this turn before: thousands of tools take 30 ms each time. Raises InvalidTurn."""
        if made is not None and not output and made.dialect == candidate.dialect:
            return made
        return AvailableTools.of(turn, self.tools_of(turn), candidate.dialect, output)

    async def build(self, progress: Progress, candidate: Candidate) -> tuple[Rendered, PromptTokens]:
        """The prompt of the next step and its token ids, shortened where allowed until an answer fits. Raises
        InvalidTurn, InvalidTemplate, TextTooLong."""
        model = candidate.model
        while True:
            with progress.trace.span("assemble", passages=progress.in_prompt) as assembling:
                segments = await self.segments(progress, candidate)
                if segments.rewrites:
                    assembling.attributes["rewritten"] = ", ".join(segments.rewrites)
            try:
                with progress.trace.span("tokenize") as span:
                    prompt = await self.encode(segments, candidate, progress.turn.salt)
                    span.attributes["tokens"] = len(prompt)
            except TextTooLong as error:
                if not await self._shorten(progress, error.excess_bytes, error.room_bytes, bytes_of):
                    raise
                continue
            room, count = model.context_length, partial(model.count, salt=progress.turn.salt)
            excess = len(prompt) + candidate.answer_tokens - room
            if excess <= 0 or not await self._shorten(progress, excess, room, count):
                return segments, prompt

    async def segments(self, progress: Progress, candidate: Candidate) -> Rendered:
        """The same prompt as it is, however long it may be."""
        turn = progress.turn
        if turn.prompt:
            return Rendered(turn.prompt)
        conclude = progress.concluding is not None
        shown = None if progress.turns_dropped else progress.offer.shown  # an item that is gone may have added a tool
        rendered = await self.render(turn, candidate, progress.output, progress.passages, shown, conclude=conclude)
        has_begun = any(isinstance(item, (Message, FunctionCall)) for item in progress.output)
        return _continued(rendered, turn.beginning, candidate.dialect) if turn.beginning and not has_begun else rendered

    async def unshortened(self, progress: Progress, candidate: Candidate) -> PromptTokens:
        """Its token ids. Raises InvalidTurn, InvalidTemplate, TextTooLong."""
        return await self.encode(await self.segments(progress, candidate), candidate, progress.turn.salt)

    async def prefix(self, turn: Turn, candidate: Candidate) -> PromptTokens:
        """What precedes the question."""
        return await self.encode(before_question(await self.render(turn, candidate)), candidate, turn.salt)

    async def render(
        self,
        turn: Turn,
        candidate: Candidate,
        output: Sequence[Item] = (),
        passages: Sequence[Passage] = (),
        shown: Sequence[dict[str, Any]] | None = None,
        *,
        conclude: bool = False,
    ) -> Rendered:
        """The prompt as the chat template writes it; `shown`: the tools, if they are known. Raises InvalidTurn,
        InvalidTemplate."""
        tools = self.offer(turn, candidate).shown if shown is None else shown
        switches = {**candidate.switches, **turn.switches.chosen(candidate.model.switches)}

        pixels = await self._pixels(turn, output)

        def work(output: Sequence[Item], passages: Sequence[Passage]) -> Rendered:
            default = candidate.model.default_system
            messages = assemble(turn, output, passages, conclude=conclude, default_system=default)
            messages = [decoded(message, pixels) for message in messages] if pixels else messages
            return candidate.model.render(messages, tools, switches, salt=turn.salt)

        if renders_fast(turn, output):
            return work(output, passages)
        return await asyncio.to_thread(work, tuple(output), tuple(passages))

    async def _pixels(self, turn: Turn, output: Sequence[Item]) -> dict[str, Pixels]:
        """The pixels of the pictures of a turn, by their digests. Raises UnseenPicture."""
        pixels: dict[str, Pixels] = {}
        for picture in pictures_in((*turn.history, *turn.input, *output)):
            if picture.digest not in pixels:
                if self._decode_picture is None:
                    raise UnseenPicture("this worker does not decode images")
                pixels[picture.digest] = await self._decode_picture(turn.tenant_id, picture)
                if sum(len(seen.rgb) for seen in pixels.values()) > PIXEL_BYTES_MAX:
                    most = f"{PIXEL_BYTES_MAX // 3_000_000} million pixels in all"
                    raise UnseenPicture(
                        f"The images of this conversation have more than {most}: start a new one, or send smaller ones"
                    )
        return pixels

    @staticmethod
    async def encode(segments: Sequence[Segment], candidate: Candidate, salt: str) -> PromptTokens:
        """Raises TextTooLong."""
        if sum([len(segment.text) for segment in segments]) < ENCODE_CHARS_MAX:
            return candidate.model.encode(segments, salt=salt)
        return await asyncio.to_thread(candidate.model.encode, segments, salt=salt)

    @staticmethod
    async def prediction(turn: Turn, candidate: Candidate) -> Sequence[int]:
        """The tokens that the answer probably repeats, as many as an answer may have."""
        tokens_max = candidate.model.context_length
        text = turn.prediction[: PREDICTED_CHARS_MAX * tokens_max]
        if not text:
            return ()
        ids = await asyncio.to_thread(candidate.model.tokenize, text, add_special=False, parse_special=False)
        return ids[:tokens_max]

    @staticmethod
    async def _shorten(progress: Progress, excess: int, room: int, count: Callable[[str], int]) -> bool:
        """Drop the oldest turns where the caller allows it, otherwise a passage. False: nothing can be dropped.

        `excess` and `room` are in the unit of `count`.
        """
        if progress.turn.truncates:
            shorter = await asyncio.to_thread(shortened, progress.turn, excess, room, count)
            if shorter is not None:
                progress.truncate(*shorter)
                return True
        if progress.in_prompt and not progress.budget.steps:
            progress.drop_passage()
            return True
        return False


def _continued(rendered: Rendered, beginning: str, dialect: Dialect) -> Rendered:
    """The prompt with the beginning of the answer, behind reasoning that the template opened. Raises InvalidTurn."""
    if dialect.format is Format.HARMONY:
        raise InvalidTurn("This model begins each message anew: it cannot continue one.", param="messages")
    thoughts, end = dialect.thoughts, rendered[-1].text if rendered else ""
    closing = [Segment(f"{thoughts.close}\n\n", trusted=True)] if thoughts and dialect.opens_thought(end) else []
    return Rendered([*rendered, *closing, Segment(beginning, trusted=False, part=Part.QUESTION)], rendered.rewrites)
