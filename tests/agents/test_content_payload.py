"""Text with pictures in it keeps its order, as parts and back."""

from __future__ import annotations

import pytest

from agents.message import FunctionCallOutput, Message
from agents.payload import content_of, content_payload, from_payload, joined, to_payload
from agents.prompt import assemble, decoded
from agents.turn import Turn
from inference.picture import Picture, Pixels
from inference.prompt import PlacedPicture
from retrieval.passage import Passage
from tests.agents.turns import TENANT, passage

CAT, DOG = Picture.of("image/png", b"cat"), Picture.of("image/gif", b"dog")


@pytest.mark.parametrize(
    "parts", [["a"], ["a", CAT], [CAT, "a"], [CAT], [CAT, DOG], ["a\n", CAT, "\nb", DOG, "c"], ["a", CAT, DOG, "b"]]
)
def test_parts_come_back_as_they_were(parts: list[str | Picture]) -> None:
    text, pictures = joined(parts)
    payload = content_payload(text, pictures)
    assert len(payload) == len(parts)
    assert content_of(payload) == (text, pictures)
    message = Message("user", text, pictures=pictures)
    assert from_payload(to_payload(message)) == message
    output = FunctionCallOutput("c", text, pictures=pictures)
    assert from_payload(to_payload(output)) == output
    back = from_payload(to_payload(message))
    assert isinstance(back, Message)
    assert [placed.picture.data for placed in back.pictures] == [
        part.data for part in parts if not isinstance(part, str)
    ]


def test_pictures_stay_in_their_places_behind_passages_and_get_their_pixels() -> None:
    text, pictures = joined(["Look:", CAT, "What is it?"])
    found: list[Passage] = [passage(1)]
    (asked,) = assemble(Turn(TENANT, (Message("user", text, pictures=pictures),)), passages=found)
    (placed,) = asked.pictures
    assert asked.content[: placed.at].endswith("Question: Look:")
    assert asked.content[placed.at :] == "What is it?"
    pixels = Pixels(1, 1, b"rgb")
    assert decoded(asked, {CAT.digest: pixels}).pictures[0].picture.pixels is pixels
    assert decoded(asked, {CAT.digest: pixels}).pictures == (PlacedPicture(placed.at, CAT),)


def test_only_two_texts_are_parted_by_a_line_break() -> None:
    assert joined(["a", "b", CAT, "c", DOG]) == ("a\nbc", (PlacedPicture(3, CAT), PlacedPicture(4, DOG)))
