"""Files and pictures in a request: what the model reads of them, and what is refused by its place."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from typing import Any
from uuid import uuid4

import orjson
import pytest

from inference.provisioning.catalogue import PRESETS
from retrieval.errors import UnreadableFile
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import LoaderPool
from tests.retrieval.loaders.hostile import ENDLESS
from tests.retrieval.loaders.test_pdf import make_pdf
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, get, post
from tests.worker.harness import Client
from worker.runs import attachments
from worker.runs.attachments import text_of
from worker.wire import limits

TENANT = uuid4()
URL = "/v1/responses"
PICTURE = "data:image/png;base64,iVBORw0KGgo="  # the beginning of one
NOTE = base64.b64encode(b"The port is 8080.").decode()


def asking(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [*parts, {"type": "input_text", "text": "What is this?"}]}]}


def file(**fields: Any) -> dict[str, Any]:
    return {"type": "input_file", **fields}


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(["I see."], name=MODEL)


@pytest.fixture
def loaders() -> Iterator[LoaderPool]:
    with closing(LoaderPool()) as pool:
        yield pool


@pytest.mark.parametrize(
    "part",
    [
        file(filename="notes.md", file_data=NOTE),
        file(filename="notes", file_data=f"data:text/plain;base64,{NOTE}"),
        file(filename="notes.pdf", file_data=base64.b64encode(make_pdf("The port is 8080.")).decode()),
        file(file_data=f"data:application/pdf;base64,{base64.b64encode(make_pdf('The port is 8080.')).decode()}"),
    ],
)
async def test_the_model_reads_the_text_of_a_file(client: Client, model: ScriptedModel, part: dict[str, Any]) -> None:
    response = await post(client, URL, asking(part))
    assert "The port is 8080.\nWhat is this?" in model.prompts[0]
    (item,) = (await get(client, f"{URL}/{response['id']}/input_items"))["data"]
    assert "The port is 8080." in item["content"][0]["text"]


@pytest.mark.parametrize("picture", [{"image_url": PICTURE, "detail": "low"}, {"file_id": "file_0"}])
async def test_a_picture_is_refused_with_those_models_of_the_catalogue_that_could_see(
    client: Client, model: ScriptedModel, picture: dict[str, Any]
) -> None:
    asked = asking({"type": "input_text", "text": "Look:"}, {"type": "input_image", **picture})
    for url in (URL, f"{URL}/input_tokens", f"{URL}/compact"):
        error = (await post(client, url, {"model": MODEL, **asked}, 400))["error"]
        assert (error["param"], error["code"]) == ("input[0].content[1]", "unsupported_image")
        assert all((preset.name in error["message"]) == preset.sees for preset in PRESETS)
    items = {"items": asked["input"]}
    assert (await post(client, "/v1/conversations", items, 400))["error"]["param"] == "items[0].content[1]"
    assert model.prompts == []


async def test_a_model_that_does_not_see_is_told_when_a_tool_shows_it_a_picture(
    client: Client, model: ScriptedModel
) -> None:
    """It called the tool, and the conversation has to go on."""
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
    shown = [{"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": PICTURE}]
    output = {"type": "function_call_output", "call_id": "c", "output": shown}
    await post(client, URL, {"input": [call, output]})
    use = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source}]}
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [use]}]
    asked = {"max_tokens": 9, "messages": [*said, {"role": "user", "content": [result]}]}
    await post(client, "/v1/messages", asked)
    assert "<tool>a.png\nError: the tool returned an image, which this model cannot see." in model.prompts[0]
    assert "<tool>Error: the tool returned an image" in model.prompts[1]


async def test_a_file_that_keeps_its_reader_busy_is_refused_with_the_reason_and_keeps_nobody_waiting(
    client: Client, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "READ_LIMITS", Limits(wall_s=60, cpu_s=1))
    name, content = ENDLESS
    hostile = file(filename=name.name, file_data=base64.b64encode(content).decode())
    body = BytesIO(orjson.dumps(asking(hostile)))

    async def send() -> tuple[int, Any]:
        async with client.post(URL, data=body, headers={"Content-Type": "application/json"}) as answer:
            return answer.status, (await answer.json())["error"]

    refused = asyncio.create_task(send())
    await post(client, URL, asking({"type": "input_text", "text": "How are you?"}))
    assert not refused.done()
    status, error = await refused
    assert (status, error["code"], error["param"]) == (400, "unsupported_file", "input[0].content[0]")
    assert error["message"].startswith("The file 'endless.html' takes far more work to read than files of its size do;")


async def test_the_output_of_a_function_may_hold_a_file(client: Client, model: ScriptedModel) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [file(filename="a.txt", file_data=NOTE)]}
    await post(client, URL, {"input": [call, output]})
    assert "<tool>File a.txt:\nThe port is 8080." in model.prompts[0]


async def test_a_conversation_takes_a_file_too(client: Client) -> None:
    items = asking(file(filename="a.txt", file_data=NOTE))["input"]
    conversation = await post(client, "/v1/conversations", {"items": items})
    (item,) = (await get(client, f"/v1/conversations/{conversation['id']}/items"))["data"]
    assert "The port is 8080." in item["content"][0]["text"]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (file(), "input[0].content[0]"),
        (file(file_data=NOTE, file_id="file_1"), "input[0].content[0]"),
        (file(filename="a.txt", file_data="not base64!"), "input[0].content[0].file_data"),
        (file(filename="a.exe", file_data=NOTE), "input[0].content[0]"),
        (file(filename="a.pdf", file_data=NOTE), "input[0].content[0]"),
        (file(filename="a.txt", file_data=""), "input[0].content[0]"),
        (file(filename="../../etc/passwd", file_data=NOTE), "input[0].content[0]"),
        (file(file_url="http://127.0.0.1/secret"), "input[0].content[0].file_url"),
        ({"type": "input_audio"}, "input[0].content[0]"),
    ],
)
async def test_what_cannot_be_read_is_a_400_that_names_its_place(
    client: Client, part: dict[str, Any], param: str
) -> None:
    assert (await post(client, URL, asking(part), 400))["error"]["param"] == param


async def test_a_file_that_is_not_there_or_anothers_is_a_404(client: Client) -> None:
    error = (await post(client, URL, asking(file(file_id="file_0")), 404))["error"]
    assert (error["param"], error["code"]) == ("input[0].content[0].file_id", "not_found")


async def test_a_request_carries_so_many_files_and_no_more(client: Client) -> None:
    files = [file(filename="a.txt", file_data=NOTE)] * (limits.FILES_MAX + 1)
    assert (await post(client, URL, asking(*files), 400))["error"]["param"] == "input"


async def test_the_text_of_a_file(loaders: LoaderPool) -> None:
    data = b"# Title\n\nThe port is 8080."
    assert await text_of(loaders, TENANT, "a.md", data) == "# Title\n\nThe port is 8080."


@pytest.mark.parametrize(("name", "data"), [("a.exe", b"x"), ("a.txt", b""), ("a.txt", b"a\0b"), ("", b"x")])
async def test_what_cannot_be_read_is_refused(loaders: LoaderPool, name: str, data: bytes) -> None:
    with pytest.raises(UnreadableFile):
        await text_of(loaders, TENANT, name, data)
