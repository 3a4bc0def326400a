"""The Messages API through Anthropic's official client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from anthropic.types import MessageParam, TextBlock, ToolParam, ToolUseBlock

from tests.clients.conftest import MODEL

HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]
ASK: MessageParam = {"role": "user", "content": "Get the weather for Oslo."}
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "Get the weather for a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
    },
}
GREEDY: Any = {"extra_body": {"temperature": 0}, "model": MODEL, "max_tokens": 100}


@pytest.fixture(scope="module")
def client(server: Mapping[str, Any]) -> Iterator[Anthropic]:
    with Anthropic(base_url=server["url"], api_key=server["api_key"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def strict_client(server: Mapping[str, Any]) -> Iterator[Anthropic]:
    """It raises an error for an answer that does not fit its types."""
    told: Any = {"base_url": server["url"], "api_key": server["api_key"], "max_retries": 0}
    with Anthropic(_strict_response_validation=True, **told) as client:
        yield client


@pytest.fixture(scope="module")
async def async_client(server: Mapping[str, Any]) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=server["url"], api_key=server["api_key"], max_retries=0) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert isinstance(block, TextBlock)
    return block.text


def test_a_message_says_the_same_whole_and_streamed(client: Anthropic) -> None:
    whole = client.messages.create(messages=HELLO, **GREEDY)
    with client.messages.stream(messages=HELLO, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text_of(whole) == text_of(final) == text
    assert whole.stop_reason == final.stop_reason == "end_turn"
    assert (final.role, final.model) == ("assistant", MODEL)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.cache_read_input_tokens and final.usage.input_tokens == 0  # its end is known, too


@pytest.mark.parametrize("streamed", [False, True])
def test_a_loop_of_tools_runs_over_two_rounds(client: Anthropic, streamed: bool) -> None:
    messages: list[MessageParam] = [ASK]
    for city, celsius in (("Oslo", "4"), ("Rome", "19")):
        asked = {**GREEDY, "messages": messages, "tools": [WEATHER], "system": "You know the weather."}
        if streamed:
            with client.messages.stream(**asked) as stream:
                answer: Any = stream.get_final_message()
        else:
            answer = client.messages.create(**asked)
        assert answer.stop_reason == "tool_use"
        call = answer.content[-1]
        assert isinstance(call, ToolUseBlock)
        assert (call.name, call.input) == ("get_weather", {"city": city})
        messages += [
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": celsius}]},
        ]
        said = client.messages.create(messages=messages, tools=[WEATHER], system="You know the weather.", **GREEDY)
        assert said.stop_reason == "end_turn" and said.content
        messages += [
            {"role": "assistant", "content": said.content},
            {"role": "user", "content": "Get the weather for Rome."},
        ]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_loop_of_the_client_itself_comes_to_an_answer(client: Anthropic, streamed: bool) -> None:
    """It asks the server to keep the conversation, is told that this one does not, and sends it whole from then on."""
    cities: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Get the weather for a city.

        Args:
            city: The city
        """
        cities.append(city)
        return '{"weather": "rain"}'

    asked: Any = ASK  # the beta has types of its own for the same
    runner: Any = client.beta.messages.tool_runner(
        messages=[asked],
        tools=[get_weather],
        max_iterations=4,
        stream=streamed,
        **GREEDY,
    )
    final = runner.until_done()
    assert cities == ["Oslo"] and "rain" in final.content[-1].text


def test_a_tool_can_be_demanded(client: Anthropic) -> None:
    message = client.messages.create(
        messages=HELLO, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True}, **GREEDY
    )
    (call,) = message.content
    assert isinstance(call, ToolUseBlock) and message.stop_reason == "tool_use"


def test_the_end_of_a_message_is_told(client: Anthropic) -> None:
    whole = text_of(client.messages.create(messages=HELLO, **GREEDY))
    word = whole.split()[1]
    stopped = client.messages.create(messages=HELLO, stop_sequences=[word], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    assert whole.startswith(text_of(stopped))
    short = client.messages.create(messages=HELLO, **{**GREEDY, "max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


def test_the_tokens_of_a_prompt_are_counted_before(client: Anthropic) -> None:
    asked: Any = {"model": MODEL, "messages": [ASK], "tools": [WEATHER]}
    counted = client.messages.count_tokens(**asked)
    usage = client.messages.create(max_tokens=5, **asked).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_models_are_listed_as_the_client_describes_them(strict_client: Anthropic) -> None:
    listed = {model.id: model for model in strict_client.models.list()}
    chat = strict_client.models.retrieve(MODEL)
    assert listed[MODEL] == chat
    for name, model in listed.items():
        assert (model.type, model.display_name, model.created_at.tzinfo) == ("model", name, UTC)
    assert chat.max_input_tokens == 2048 and chat.capabilities is not None
    assert chat.capabilities.structured_outputs.supported and not chat.capabilities.image_input.supported
    assert [name for name, model in listed.items() if model.capabilities is None] == [*listed.keys() - {MODEL}]


def test_the_models_come_in_pages_in_both_directions(strict_client: Anthropic) -> None:
    models = strict_client.models
    known = [model.id for model in models.list()]
    assert len(known) > 1 and known == [model.id for model in models.list(limit=1)]  # one page after the other
    first = models.list(limit=1)
    assert (first.first_id, first.last_id, first.has_more) == (known[0], known[0], True)
    assert [model.id for model in models.list(after_id=known[0], limit=1).data] == [known[1]]
    before = models.list(before_id=known[-1], limit=1)
    assert ([model.id for model in before.data], before.has_more) == ([known[-2]], len(known) > 2)
    assert [model.id for model in models.list(before_id=known[-1])] == known[:-1]
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("limit", {"limit": 0}),
        ("limit", {"limit": 1001}),
        ("after_id", {"after_id": "no-model"}),
        ("before_id", {"after_id": known[0], "before_id": known[1]}),
    ]
    for param, asked in wrong:
        with pytest.raises(anthropic.BadRequestError, match=param):
            models.list(**asked)


def test_files_are_those_that_the_client_describes_and_messages_read(strict_client: Anthropic) -> None:
    sent = [strict_client.files.upload(file=(f"{i}.txt", b"A berth costs 40 euros.")) for i in range(3)]
    file = sent[-1]
    assert (file.type, file.filename, file.mime_type, file.size_bytes) == ("file", "2.txt", "text/plain", 23)
    assert strict_client.beta.files.retrieve_metadata(file.id).created_at == file.created_at
    page = strict_client.files.list(limit=2)
    assert [each.id for each in page.data] == [sent[2].id, sent[1].id]
    assert sent[0].id in [each.id for each in page.get_next_page().data]
    assert strict_client.files.download(file.id).read() == b"A berth costs 40 euros."
    asked: Any = [{"type": "document", "source": {"type": "file", "file_id": file.id}}, {"type": "text", "text": "hi"}]
    told: Any = {"model": MODEL, "messages": [{"role": "user", "content": asked}]}
    assert strict_client.messages.count_tokens(**told).input_tokens > 20
    for each in sent:
        assert strict_client.files.delete(each.id).type == "file_deleted"
    with pytest.raises(anthropic.NotFoundError) as gone:
        strict_client.files.retrieve_metadata(file.id)
    assert gone.value.type == "not_found_error" and gone.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="ids"):
        strict_client.files.list(ids=[file.id])


def test_errors_are_of_their_types(client: Anthropic, server: Mapping[str, Any]) -> None:
    with pytest.raises(anthropic.NotFoundError, match="is not available on this worker"):
        client.messages.create(messages=HELLO, **{**GREEDY, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as refused:
        client.messages.create(messages=HELLO, **{**GREEDY, "max_tokens": -1})
    assert refused.value.request_id
    long: MessageParam = {"role": "user", "content": "word " * 20_000}
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(messages=[long], **GREEDY)
    stranger = Anthropic(base_url=server["url"], api_key="ft_wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(messages=HELLO, **GREEDY)


def test_what_a_coding_agent_sends_is_taken(client: Anthropic) -> None:
    answer = client.beta.messages.with_raw_response.create(
        **{**GREEDY, "extra_body": {"temperature": 0, "one_of_tomorrow": True}},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "You are kind.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        tools=[{**WEATHER, "cache_control": {"type": "ephemeral"}}],
        thinking={"type": "enabled", "budget_tokens": 4000},
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        metadata={"user_id": "user_1"},
        betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
    )
    ignored = set(answer.headers["x-firsttoken-ignored"].split(","))
    assert ignored >= {"cache_control", "context_management", "one_of_tomorrow", "thinking"}
    assert answer.parse().content


async def test_leaving_a_stream_ends_the_answer(async_client: AsyncAnthropic) -> None:
    asked: Any = {**GREEDY, "max_tokens": 4000, "extra_body": {"temperature": 1.9}}
    async with async_client.messages.stream(messages=HELLO, **asked) as stream:
        async for _ in stream.text_stream:
            break
    assert text_of(await async_client.messages.create(messages=HELLO, **GREEDY))
