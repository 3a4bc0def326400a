"""A worker whose model has a projector takes images in every API, finds them in its cache, and names what is wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from PIL import Image

from tests.compliance.conftest import Wire
from tests.compliance.test_http import image_input
from tests.inference.projectors import write_projector
from tests.serving import Worker
from worker.wire import limits

pytestmark = pytest.mark.any_answer("a random projector shows it nothing that it could tell")
IMAGE_TOKENS = 16  # of any image


def png(color: str, size: tuple[int, int] = (60, 40)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


RED, GREEN = png("red"), png("green")


@pytest.fixture(scope="module")
def server(make_home: Callable[[], Path]) -> Iterator[dict[str, Any]]:
    home = make_home()
    projector = write_projector(home / "mmproj.gguf", "gemma3", 384)
    worker = Worker(home, "--docs", "", "--mmproj", str(projector))
    yield worker.wait_until_ready()
    worker.stop()


@pytest.fixture
async def wire(server: dict[str, Any]) -> AsyncIterator[Wire]:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession(server["url"], headers=headers) as http:
        yield Wire(http)


def shown(image: dict[str, Any], text: str = "What is it?") -> dict[str, Any]:
    parts = [{"type": "input_image", **image}, {"type": "input_text", "text": text}]
    return {"input": [{"type": "message", "role": "user", "content": parts}], "max_output_tokens": 4}


async def test_the_case_of_the_specification_is_answered(wire: Wire) -> None:
    await image_input(wire)


async def test_a_question_about_a_known_image_reads_only_its_text(wire: Wire) -> None:
    first = await wire.respond(shown({"image_url": url(RED), "detail": "low"}))
    assert first["usage"]["input_tokens_details"]["image_tokens"] == IMAGE_TOKENS
    second = (await wire.respond(shown({"image_url": url(RED)}, "Is it red?")))["usage"]
    assert second["input_tokens"] - second["input_tokens_details"]["cached_tokens"] < IMAGE_TOKENS
    other = (await wire.respond(shown({"image_url": url(GREEN)}, "Is it red?")))["usage"]
    assert other["input_tokens"] - other["input_tokens_details"]["cached_tokens"] >= IMAGE_TOKENS
    (item,) = (await wire.get(f"responses/{first['id']}/input_items"))["data"]
    assert [part["type"] for part in item["content"]] == ["input_image", "input_text"]
    assert item["content"][0]["image_url"] == url(RED)
    next_turn = await wire.respond({"previous_response_id": first["id"], "input": "And now?", "max_output_tokens": 4})
    assert next_turn["usage"]["input_tokens_details"]["image_tokens"] == IMAGE_TOKENS
    assert next_turn["usage"]["input_tokens_details"]["cached_tokens"] > IMAGE_TOKENS


async def test_the_other_apis_take_images_in_their_own_form(wire: Wire) -> None:
    image = {"type": "image_url", "image_url": {"url": url(RED), "detail": "auto"}}
    asked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, image]}], "max_tokens": 4}
    usage = (await wire.post("chat/completions", asked))["usage"]
    assert usage["prompt_tokens_details"]["image_tokens"] == IMAGE_TOKENS
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    block = {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "c", "name": "shot", "input": {}}
    messages = [
        {"role": "user", "content": [block, {"type": "text", "text": "Take another"}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [block]}]},
    ]
    tools = [{"name": "shot", "input_schema": {"type": "object"}}]
    for said in (messages[:1], messages):
        asked = {"model": "demo-chat", "max_tokens": 4, "tools": tools, "messages": said}
        usage = (await wire.post("messages", asked))["usage"]
        counted = await wire.post("messages/count_tokens", {"model": "demo-chat", "tools": tools, "messages": said})
        assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


async def test_a_stored_file_is_an_image_too(wire: Wire) -> None:
    form = aiohttp.FormData({"purpose": "user_data"})
    form.add_field("file", RED, filename="red.png", content_type="image/png")
    async with wire.http.post("/v1/files", data=form) as answer:
        file = await answer.json()
        assert answer.status == 200, file
    usage = (await wire.respond(shown({"file_id": file["id"]})))["usage"]
    assert usage["input_tokens_details"]["image_tokens"] == IMAGE_TOKENS
    form = aiohttp.FormData({"purpose": "vision"})
    form.add_field(
        "file", io.BytesIO(RED + bytes(limits.IMAGE_BYTES_MAX)), filename="large.png", content_type="image/png"
    )
    async with wire.http.post("/v1/files", data=form) as answer:
        large = (await answer.json())["id"]
    error = (await wire.post("responses", shown({"file_id": large}), 400))["error"]
    assert (error["param"], error["code"]) == ("input[0].content[0]", "unsupported_image")
    assert "larger than 20 MB" in error["message"]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"image_url": "https://example.com/cat.png"}, "not fetched from addresses"),
        ({"image_url": "data:image/png;base64,!"}, "must be in base64"),
        ({"image_url": url(b"hello")}, "can be PNG, JPEG, WebP or GIF"),
        ({"image_url": url(RED[:40])}, "is damaged|is not a PNG"),
        ({"image_url": url(png("red", (510, 10)))}, "more than 50 times as long"),
        ({"file_id": "file_none"}, "no file with the id"),
        ({}, "needs either image_url"),
    ],
)
async def test_an_image_that_cannot_be_seen_is_refused_at_its_place(
    wire: Wire, image: dict[str, Any], reason: str
) -> None:
    status = 404 if "file_id" in image else 400
    error = (await wire.post("responses", shown(image), status))["error"]
    assert error["param"].startswith("input[0].content[0]")
    assert any(each in error["message"] for each in reason.split("|"))


async def test_only_users_and_tools_show_images(wire: Wire) -> None:
    image = {"type": "image_url", "image_url": {"url": url(RED)}}
    said = [{"role": "system", "content": [image]}, {"role": "user", "content": "Hello"}]
    error = (await wire.post("chat/completions", {"messages": said}, 400))["error"]
    assert (error["param"], error["code"]) == ("messages[0]", "unsupported_image")


async def test_the_model_says_that_it_sees(wire: Wire) -> None:
    model = next(each for each in (await wire.get("models"))["data"] if each["id"] == "demo-chat")
    assert "vision" in model["capabilities"]
    assert model["architecture"]["input_modalities"] == ["text", "image"]
