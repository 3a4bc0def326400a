"""What a surface does to a turn: it only ever takes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.definition import BATCH, CLASSES, USUAL, AgentRegistry, InvalidAgents, Surface
from agents.turn import Limits, Owner
from inference.generation import Priority
from tests.agents.turns import asked

FILE = """
[agents.help]
instructions = "Help."

[surfaces.voice]
first_token_ms = 300
tokens = 200
thought_tokens = 40
answer_s = 20
class = "standard"
instructions = "Begin with the answer."

[surfaces.kiosk]
late = "wait"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "agents.toml"
    path.write_text(text)
    return path


def test_a_surface_shortens_the_answer_and_says_how_to_begin(tmp_path: Path) -> None:
    voice = AgentRegistry.read(written(tmp_path, FILE)).surfaces["voice"]
    limits = (turn := voice.applied(asked(instructions="Be kind."))).limits
    assert (limits.tokens, limits.answer_tokens, limits.tokens_by) == (200, 200, Owner.SURFACE)
    assert (limits.seconds, limits.answer_s, limits.seconds_by) == (20, 20, Owner.SURFACE)
    assert limits.thought_tokens == 40
    assert turn.instructions == "Be kind.\n\nBegin with the answer."
    assert str(voice).startswith("answer_s 20.0, tokens 200, thought_tokens 40, class standard")


def test_a_surface_shortens_the_search() -> None:
    voice = Surface.model_validate({"retrieval_ms": 150})
    assert voice.applied(asked()).limits.retrieval_ms == 150
    hurried = asked(limits=Limits(retrieval_ms=100))
    assert voice.applied(hurried).limits.retrieval_ms == 100


@given(
    tokens=st.none() | st.integers(1, 10_000),
    answer_s=st.none() | st.floats(0.1, 1000),
    best=st.sampled_from([None, *CLASSES]),
    priority=st.sampled_from(list(CLASSES.values())),
)
def test_no_surface_gives_a_turn_more_than_it_had(
    tokens: int | None, answer_s: float | None, best: Any, priority: Priority
) -> None:
    surface = Surface.model_validate({"tokens": tokens, "answer_s": answer_s, "class": best})
    done = surface.applied(asked())
    assert done.limits.tokens <= Limits().tokens
    assert done.limits.seconds <= Limits().seconds
    assert surface.capped(priority) >= priority


def test_what_nobody_waits_for_goes_last_and_is_never_late() -> None:
    assert USUAL[BATCH].capped(Priority.INTERACTIVE) is Priority.BATCH
    assert USUAL[BATCH].first_token_ms is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (FILE.replace("tokens = 200", 'tokens = "many"'), "agents.toml:7: surfaces.voice.tokens: "),
        (FILE.replace('late = "wait"', 'late = "later"'), "agents.toml:14: surfaces.kiosk.late: "),
        (FILE.replace("tokens = 200", "tokns = 200"), "agents.toml:7: surfaces.voice.tokns: "),
        (FILE + "\n[surfaces.UPPER]\n", "agents.toml:16: surfaces.UPPER: "),
        (FILE + "\n[surfaces.desk\n", "line 16"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(InvalidAgents) as error:
        AgentRegistry.read(written(tmp_path, text))
    assert place in str(error.value)
    assert "\n" not in str(error.value)
