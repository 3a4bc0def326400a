"""How answers begin when a model does not know, or refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable

# In the words of the bundled model and of larger ones.
REFUSALS = (
    "i am only a small demo model",
    "i can't",
    "i cannot",
    "i can not",
    "i'm sorry",
    "i am sorry",
    "sorry",
    "i'm not sure",
    "i am not sure",
    "i don't know",
    "i do not know",
    "i do not have",
    "i don't have",
    "unfortunately",
    "ich weiß nicht",
    "ich kann nicht",
    "es tut mir leid",
    "leider",
    "je ne sais pas",
    "je ne peux pas",
    "désolé",
    "no lo sé",
    "no puedo",
    "lo siento",
)
# Includes that nothing was found: another model finds no more in the same passages, but the user was not helped.
DECLINED = (*REFUSALS, "i could not find", "i couldn't find", "i was not able to find", "i wasn't able to find")


def begins_like(text: str, beginnings: Iterable[str]) -> bool:
    said = text.lstrip().casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return any(said.startswith(beginning.casefold()) for beginning in beginnings)
