from __future__ import annotations

import pytest

from agents.routing.policy import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France?", "en"),
        ("Wie heißt die Hauptstadt von Frankreich, und wo ist sie?", "de"),
        ("Quelle est la capitale de la France ?", "fr"),
        ("¿Cuál es la capital de Francia?", "es"),
        ("Qual é a capital da França e onde está?", "pt"),
        ("Qual è la capitale della Francia e dove sono gli uffici?", "it"),
        ("Wat is de hoofdstad van het land en waar is die?", "nl"),
        ("東京はどこですか", "ja"),
        ("北京在哪里", "zh"),
        ("Где находится столица?", "ru"),
        ("12 * 7", ""),
        ("", ""),
    ],
)
def test_a_question_tells_its_language_by_script_and_short_words(text: str, language: str) -> None:
    assert language_of(text) == language
