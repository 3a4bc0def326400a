"""The language of a question, guessed by its script and its most frequent short words: some microseconds, no model.

It is for rules that choose a model, where a wrong guess costs a better or worse model and nothing else; a question of a
few words often remains unidentified.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

CHARS_MAX = 400  # two sentences are enough
FREQUENT: Mapping[str, str] = {
    "de": "der die das und ist ich nicht ein eine wie was wir sie mit für auf kann wo wer den dem im",
    "en": "the and is of to in what how i you are my can do does a an it that where who for with",
    "es": "el la los las y es que en un una cómo qué cuál mi por para con está dónde quién del",
    "fr": "le la les et est je que qui un une comment quel quelle mon pour avec dans où des du ce",
    "it": "il lo la gli e è che di un una come cosa quale mio per con dove chi della sono nel",
    "nl": "de het een en is ik niet wat hoe mijn van voor met waar wie kan op zijn dat je",
    "pt": "o a os as e é que em um uma como qual meu por para com está onde quem do da não",
}
WORDS = {name: frozenset(words.split()) for name, words in FREQUENT.items()}
# The first script that a question has letters of; kana before the signs that Japanese shares with Chinese.
SCRIPTS = (
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\uac00-\ud7af]")),
    ("zh", re.compile("[\u4e00-\u9fff]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
    ("ar", re.compile("[\u0600-\u06ff]")),
    ("he", re.compile("[\u0590-\u05ff]")),
)
LANGUAGES = frozenset({*WORDS, *(name for name, _ in SCRIPTS)})
_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str:
    """An ISO 639-1 code, or empty if there is no evidence, or two languages match equally."""
    beginning = text[:CHARS_MAX].casefold()
    if not beginning.isascii():
        for name, script in SCRIPTS:
            if script.search(beginning):
                return name
    said = _WORD.findall(beginning)
    counts = Counter({name: sum(word in words for word in said) for name, words in WORDS.items()}).most_common(2)
    (best, most), (_, second) = counts
    return best if most > second else ""
