"""Learns a vocabulary in which copying is easy for a tiny model.

Letters are merged first, with the blank before a word kept apart; only then is the blank merged onto frequent words in
lower case. So " Tallinn" is a blank and the very tokens of "Tallinn", and a value keeps its tokens when it is copied
into JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from training.vocabulary import CONTROL, MARKS, Vocabulary, rules

SIZE = 5120
SPACED = 1500  # words that have a token together with the blank before them
BLANK = "Ġ"  # as the alphabet of byte-level BPE writes it

_FREQUENT = re.compile(r" ([a-z]+|I|The|A|What)\b")


def learn(texts: Sequence[str], size: int = SIZE, spaced: int = SPACED) -> Vocabulary:
    """`size` tokens at most. Marks and control tokens in the texts are skipped."""
    markup = re.compile("|".join(map(re.escape, (*CONTROL, *MARKS))))
    texts = [markup.sub("\n", text) for text in texts]
    letters = _letters(texts, size - spaced - len(CONTROL) - len(MARKS))
    known = set(letters.tokens)
    counts = Counter(word for text in texts for word in _FREQUENT.findall(text))
    words = [word for word, _ in counts.most_common() if word in known and BLANK + word not in known][:spaced]
    return Vocabulary(
        (*CONTROL, *MARKS, *letters.tokens, *(BLANK + word for word in words)),
        (*letters.merges, *((BLANK, word) for word in words)),
    )


def _letters(texts: Sequence[str], size: int) -> Vocabulary:
    """Learnt with blanks as words of their own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*rules(), pre_tokenizers.Split(Regex(f"{BLANK}(?=[A-Za-z])"), "isolated")]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return Vocabulary.of(tokenizer)
