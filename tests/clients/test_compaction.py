"""A conversation made short through the official client, and gone on with."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.conftest import MODEL

TALK: Any = [
    {"role": "user", "content": "We agreed to launch on Tuesday and to tell support first."},
    {"role": "assistant", "content": "Understood: Tuesday, and support hears of it before."},
]


def test_a_conversation_goes_on_from_what_was_compacted(client: OpenAI) -> None:
    compacted = client.responses.compact(model=MODEL, input=TALK)
    assert compacted.object == "response.compaction"
    assert compacted.usage.output_tokens > 0
    (item,) = compacted.output
    assert item.type == "compaction" and "Tuesday" not in item.encrypted_content
    question: Any = {"role": "user", "content": "When do we launch?"}
    again: Any = [item.to_dict(), question]
    response = client.responses.create(model=MODEL, input=again, temperature=0)
    assert response.status == "completed"


@pytest.mark.any_answer("here the question is what is sealed, not what was said")
async def test_a_stored_conversation_is_compacted_by_its_last_response(async_client: AsyncOpenAI) -> None:
    first = await async_client.responses.create(model=MODEL, input=TALK)
    compacted = await async_client.responses.compact(model=MODEL, previous_response_id=first.id)
    assert compacted.output[0].type == "compaction"
    with pytest.raises(openai.BadRequestError) as forged:
        await async_client.responses.create(
            model=MODEL, input=[{"type": "compaction", "encrypted_content": "ftc1_AAAA"}]
        )
    assert (forged.value.param, forged.value.code) == ("input[0].encrypted_content", "invalid_encrypted_content")


def test_a_response_compacts_its_conversation_by_itself(client: OpenAI) -> None:
    said = [f"The ferry to Norsund costs {number} crowns." for number in range(60)]
    history: Any = [{"role": "user", "content": text} for text in said]
    ask: Any = {"role": "user", "content": "hello"}
    usual: Any = {
        "model": MODEL,
        "temperature": 0,
        "context_management": [{"type": "compaction", "compact_threshold": 700}],
    }
    with client.responses.stream(input=[*history, ask], **usual) as stream:
        first = stream.get_final_response()
    assert [item.type for item in first.output] == ["compaction", "message"]
    assert first.usage is not None and first.usage.input_tokens > 700
    second = client.responses.create(input="thanks", previous_response_id=first.id, **usual)
    assert [item.type for item in second.output] == ["message"]
    assert second.usage is not None and second.usage.input_tokens < 700
