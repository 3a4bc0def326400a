"""The tokens and how text is cut into them: byte-level BPE that llama.cpp cuts the same way ("smollm").

Digits are single tokens; all else is cut by GPT-2's pattern first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PRE_TOKENIZER = "smollm"  # llama.cpp's name of the rules below
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")


def rules() -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens` by id, in the alphabet of byte-level BPE; `merges` in the order in which they are tried."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        model = json.loads(tokenizer.to_str())["model"]
        ids: dict[str, int] = model["vocab"]
        return cls(tuple(sorted(ids, key=ids.__getitem__)), tuple((left, right) for left, right in model["merges"]))

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        return cls.of(Tokenizer.from_file(str(path)))

    def tokenizer(self) -> Tokenizer:
        ids = {token: id for id, token in enumerate(self.tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(self.merges)))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rules())
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
        return tokenizer

    def id(self, token: str) -> int:
        return self.tokens.index(token)
