"""Messages to tokens and back, as one file of weights has it: chat template, tokens, and the vocabulary of grammars.

A file with 50,000 tokens takes 0.4 s of the processor, so who has it hands it on to whatever serves the same file.
"""

from __future__ import annotations

from functools import partial

from inference.grammar.constraint import Vocabulary
from inference.llama import LlamaModel
from inference.template import ChatTemplate
from inference.tokenizer import Room, Tokenizer


class Codec:
    """`source` may be loaded without tensors, and stays open as long as anybody tokenizes: until the last of those that
    `join` leaves. `context` bounds the texts.

    Raises InvalidTemplate for a model without a usable chat template.
    """

    def __init__(self, source: LlamaModel, context: int) -> None:
        self.source, self.context = source, context
        self._users = 0
        self.template = ChatTemplate(source.chat_template, bos=source.bos_text, eos=source.eos_text)
        self.pieces, self.end_tokens = source.pieces(), source.end_tokens()
        # Control tokens without text in answers, which therefore have empty pieces.
        self.marks = {id: source.token_text(id).encode() for id, piece in enumerate(self.pieces) if not piece}
        longest = max(map(len, [*self.pieces, *self.marks.values()]))
        room = Room(context, longest) if source.keeps_text else None
        self.tokenizer = Tokenizer(source, room, self.template.openings)
        self.vocabulary = Vocabulary(self.pieces, self.end_tokens, partial(source.tokenize, parse_special=True))

    def join(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self.source.close()
