"""A conversation as a document for people."""

from __future__ import annotations

from agents.message import Message
from agents.payload import joined
from inference.picture import Picture
from worker.routes.conversations import markdown


def test_there_is_a_note_in_the_place_of_each_picture() -> None:
    text, pictures = joined([Picture.of("image/png", b"cat"), "What is it?", Picture.of("image/png", b"dog")])
    told = markdown(None, [Message("user", text, pictures=pictures), Message("assistant", "A cat.")])
    assert told == "# Conversation\n\n## Question\n\n*(image)*\n\nWhat is it?\n\n*(image)*\n\n## Answer\n\nA cat.\n"
