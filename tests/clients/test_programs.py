"""Coding agents themselves, without a person: each is a process with a home of its own and no way to other machines.
The model that answers them follows a script. `make test-clients` runs these tests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from deploy import clients
from deploy.commands import SetupFailed
from deploy.weights import weights
from migrations.pool import Database
from tests.compliance.test_http import PIXEL
from tests.inference.grammar.test_escaped_lark import VOCABULARY
from tests.scripted import ScriptedModel
from tests.serving import Worker
from tests.worker.answering import answering
from tests.worker.harness import Client
from tests.worker.routes.test_client_tools import call
from tests.worker.routes.test_foreign_histories import BEGUN, SAID
from tests.worker.tool_server import ToolServer
from worker.services import SERVICES

TIMEOUT_S = 100.0  # of one run, which takes two seconds on a quiet machine
pytestmark = [pytest.mark.programs, pytest.mark.timeout(3 * TIMEOUT_S)]
MODULES = clients.PROGRAMS / "node_modules"
CODEX = MODULES / "@openai/codex" / "bin" / "codex.js"
CLAUDE = MODULES / "@anthropic-ai/claude-code" / "cli-wrapper.cjs"
NOWHERE = "http://127.0.0.1:9"  # nobody listens there
# Codex gives the first one functions and patches, the second one a tool for scripts that call them.
FUNCTIONS, CODE = "gpt-5.5", "gpt-6.1-sol"
CONFIG = """\
model = "{model}"
model_provider = "here"
[model_providers.here]
name = "{name}"
base_url = "{url}v1"
env_key = "AGENT_KEY"
wire_api = "responses"
supports_websockets = {websockets}
request_max_retries = 0
stream_max_retries = 0
[mcp_servers.far]
url = "{tools}"
"""
# Its sandbox needs namespaces, which containers often do not have.
ALONE = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
PATCH = """\
*** Begin Patch
*** Update File: note.txt
@@
-old
+new
*** End Patch
"""
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
SMALL = "smollm2"
THOUGHT = "<think>\nI look first.\n</think>\n\n"
THINKS = "<tool_call> {% generation %} </think>"  # enough of a template to tell the dialect
Events: TypeAlias = list[dict[str, Any]]
Place: TypeAlias = tuple[str, str]  # the address of a worker, and a key for it


@dataclass(frozen=True)
class Desk:
    """A folder to work in, with one file, and the home of the program. `may_fail`: whether it may give up."""

    folder: Path
    home: Path
    may_fail: bool = False

    @property
    def note(self) -> Path:
        return self.folder / "note.txt"

    async def run(self, program: Path, *arguments: str, **environment: str) -> Events:
        """What the program printed, line by line."""
        given = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.home), **environment}
        process = await asyncio.create_subprocess_exec(
            *(str(clients.NODE), str(program), *arguments),
            cwd=self.folder,
            env={**given, "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                told, complaints = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        assert process.returncode in (0, int(self.may_fail)), (told + complaints).decode()
        return [json.loads(line) for line in told.splitlines()]


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    """They come from the cache, unless nobody has run these tests here before."""
    try:
        clients.install(clients.PROGRAMS)
    except SetupFailed as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "work", tmp_path / "home")
    for folder in (desk.folder, desk.home):
        folder.mkdir()
    desk.note.write_text("old\n")
    return desk


def scripted(*replies: str, name: str = FUNCTIONS, **more: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), name=name, piece_chars=5, **more)


def place(client: Client) -> Place:
    return str(client.make_url("/")), client.session.headers["Authorization"].removeprefix("Bearer ")


async def codex(
    desk: Desk,
    place: Place,
    mcp: ToolServer,
    model: str,
    *arguments: str,
    websockets: bool = False,
    name: str = "here",
) -> Events:
    url, key = place
    config = desk.home / ".codex" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    spelled = {"model": model, "name": name, "url": url, "tools": mcp.url}
    config.write_text(CONFIG.format(**spelled, websockets=str(websockets).lower()))
    return await desk.run(CODEX, "exec", *arguments, *ALONE, AGENT_KEY=key)


async def claude(desk: Desk, place: Place, mcp: ToolServer, *arguments: str) -> Events:
    url, key = place
    servers = {"mcpServers": {"far": {"type": "http", "url": mcp.url}}}
    return await desk.run(
        CLAUDE,
        *("--print", *arguments, "--output-format=stream-json", "--verbose"),
        *("--permission-mode=acceptEdits", "--allowedTools=Bash,mcp__far__double"),
        *(f"--mcp-config={json.dumps(servers)}", "--strict-mcp-config"),
        ANTHROPIC_BASE_URL=url.removesuffix("/"),
        ANTHROPIC_AUTH_TOKEN=key,
        ANTHROPIC_MODEL=FUNCTIONS,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


@asynccontextmanager
async def elsewhere(path: str, answers: list[Events]) -> AsyncIterator[str]:
    """The address of another provider, which gives these answers one after the other."""
    left = iter(answers)

    async def answer(request: web.Request) -> web.Response:
        events = next(left)
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post(path, answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


def response_events(*items: dict[str, Any]) -> Events:
    usage = {"input_tokens": 9, "input_tokens_details": None, "output_tokens": 9, "output_tokens_details": None}
    ended = {"id": "resp_1", "usage": {**usage, "total_tokens": 18}, "output": list(items)}
    told = [{"type": "response.output_item.done", "item": item} for item in items]
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        *told,
        {"type": "response.completed", "response": ended},
    ]


def message_events(reason: str, *said: dict[str, Any]) -> Events:
    usage = {"input_tokens": 9, "output_tokens": 9}
    head = {"id": f"msg_{reason}", "type": "message", "role": "assistant", "model": "other", "content": []}
    events: Events = [{"type": "message_start", "message": {**head, "usage": usage}}]
    for index, block in enumerate(said):
        of = {"index": index}
        deltas: list[dict[str, Any]] = []
        if "input" in block:
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
            block = {**block, "input": {}}
        elif "signature" in block:
            thinking, signature = block["thinking"], block["signature"]
            deltas = [{"type": "thinking_delta", "thinking": thinking}]
            deltas.append({"type": "signature_delta", "signature": signature})
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif "text" in block:
            deltas = [{"type": "text_delta", "text": block["text"]}]
            block = {**block, "text": ""}
        events.append({"type": "content_block_start", "content_block": block, **of})
        events += [{"type": "content_block_delta", "delta": delta, **of} for delta in deltas]
        events.append({"type": "content_block_stop", **of})
    ended = {"stop_reason": reason, "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]


def done(events: Events) -> list[Any]:
    """The items of a run of Codex: what it read, changed, called and was told."""
    keys = {"command_execution": "aggregated_output", "mcp_tool_call": "arguments", "agent_message": "text"}
    items = (event["item"] for event in events if event["type"] == "item.completed")
    return [(item["type"], item.get(keys.get(item["type"], ""))) for item in items]


def blocks(events: Events, role: str) -> list[dict[str, Any]]:
    """The blocks of the messages that Claude Code got, or sent as the user."""
    return [block for event in events if event["type"] == role for block in event["message"]["content"]]


def refused(client: Client) -> list[dict[str, str]]:
    """The requests that were answered with an error. One whose client left (499) was not refused."""
    assert client.app is not None
    (family,) = client.app[SERVICES].telemetry.metrics.requests.collect()
    labels = [sample.labels for sample in family.samples if sample.name.endswith("_total")]
    return [each for each in labels if each["status"] >= "400" and each["status"] != "499"]


def compile_all(model: ScriptedModel) -> bool:
    """Whether there were grammars of calls, all of which the library takes: it raises for any other."""
    return bool([VOCABULARY.compile(text) for text in {grammar.text for grammar in model.grammars}])


def only_grow(prompts: Sequence[str]) -> bool:
    """Whether each prompt begins with the one before: then the cache holds."""
    return all(later.startswith(earlier.removesuffix("<assistant>")) for earlier, later in pairwise(prompts))


@pytest.mark.parametrize("websockets", [False, True])
async def test_codex_reads_edits_calls_and_goes_on_later(
    database: Database, desk: Desk, mcp: ToolServer, websockets: bool
) -> None:
    rounds = [
        call("exec_command", cmd="cat note.txt"),
        call("apply_patch", input=PATCH),
        call("tool_search", query="double"),
        call("mcp__far__double", x=21),
        "It is done.",
        "Nothing else.",
    ]
    model = scripted(*([""] if websockets else []), *rounds)  # a connection begins with a prompt that is only read
    async with answering(database, model=model) as client:
        first = await codex(desk, place(client), mcp, FUNCTIONS, "Do it.", websockets=websockets)
        later = await codex(desk, place(client), mcp, FUNCTIONS, "resume", "--last", "Anything?", websockets=websockets)
        assert refused(client) == []
    assert done(first) == [
        ("command_execution", "old\n"),
        ("file_change", None),
        ("mcp_tool_call", {"x": 21}),
        ("agent_message", "It is done."),
    ]
    assert (desk.note.read_text(), mcp.calls) == ("new\n", [{"x": 21}])
    assert done(later) == [("agent_message", "Nothing else.")]
    assert compile_all(model)
    prompts = [prompt for prompt in model.prompts if "Do it." in prompt]
    assert len(prompts) == len(rounds) and only_grow(prompts)
    assert "mcp__far__double" not in prompts[2] and "42" in prompts[4].rpartition("<tool>")[2]


async def test_codex_runs_the_scripts_of_a_model_that_has_one_tool_for_them(
    database: Database, desk: Desk, mcp: ToolServer
) -> None:
    reads = 'const read = await tools.exec_command({cmd: "cat note.txt"}); text(read.output);'
    edits = f"text(await tools.apply_patch({json.dumps(PATCH)}));"
    model = scripted(
        *(call("functions__exec", input=reads), call("functions__exec", input=edits), "It is done."), name=CODE
    )
    async with answering(database, model=model) as client:
        events = await codex(desk, place(client), mcp, CODE, "Do it.")
        assert refused(client) == []
    assert done(events) == [
        ("command_execution", "old\n"),
        ("file_change", None),
        ("agent_message", "It is done."),
    ]
    assert desk.note.read_text() == "new\n" and only_grow(model.prompts) and compile_all(model)


@pytest.mark.parametrize("model_name", [FUNCTIONS, CODE])
async def test_codex_has_its_session_compacted_where_it_takes_the_worker_for_openais(
    database: Database, desk: Desk, mcp: ToolServer, model_name: str
) -> None:
    """By the name of the provider. It then sends notes for OpenAI's servers and updates of the effort, too."""
    read = call("exec_command", cmd="cat note.txt") if model_name == FUNCTIONS else call("functions__exec", input="1")
    model = scripted(read, "It was read.", "", "It is done.", name=model_name)  # the third prompt is only read
    soon = "--config=model_auto_compact_token_limit=30000"
    async with answering(database, model=model) as client:
        events = await codex(desk, place(client), mcp, model_name, "Do it.", soon, name="OpenAI")
        assert refused(client) == []
    assert done(events)[-1] == ("agent_message", "It is done.")
    assert "Summary of the conversation so far:\nIt was read." in model.prompts[3]


async def test_codex_needs_only_an_address_in_place_of_openais(database: Database, desk: Desk) -> None:
    config = desk.home / ".codex" / "config.toml"
    config.parent.mkdir()
    model = scripted("", call("exec_command", cmd="cat note.txt"), "It is done.")  # it begins with a WebSocket
    async with answering(database, model=model) as client:
        url, key = place(client)
        config.write_text(f'model = "{FUNCTIONS}"\nopenai_base_url = "{url}v1"\n')
        events = await desk.run(CODEX, "exec", "Do it.", *ALONE, CODEX_API_KEY=key)
        assert refused(client) == []
    assert done(events) == [("command_execution", "old\n"), ("agent_message", "It is done.")]


async def test_codex_goes_on_with_a_session_that_began_at_openai(
    database: Database, desk: Desk, mcp: ToolServer
) -> None:
    """With thoughts that nobody else can read, and what OpenAI's own tools found."""
    called = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "apply_patch", "input": PATCH}
    answers = [[*BEGUN[1:5], {**called, "status": "completed"}], BEGUN[5:]]
    model = scripted("Nothing else.")
    async with elsewhere("/v1/responses", [response_events(*items) for items in answers]) as other:
        first = await codex(desk, (other, "sk-other"), mcp, FUNCTIONS, "What do two berths cost?")
    assert done(first)[-2:] == [("file_change", None), ("agent_message", "They cost 80 euros.")]
    async with answering(database, model=model) as client:
        later = await codex(desk, place(client), mcp, FUNCTIONS, "resume", "--last", "Anything?")
        assert refused(client) == []
    assert done(later) == [("agent_message", "Nothing else.")]
    (prompt,) = model.prompts
    assert "berth prices" in prompt and "+new" in prompt and "They cost 80 euros." in prompt
    assert "only_they_read_it" not in prompt


async def test_claude_code_goes_on_with_a_session_that_began_at_anthropic(
    database: Database, desk: Desk, mcp: ToolServer
) -> None:
    read = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": str(desk.note)}}
    answers = [message_events("tool_use", SAID[2], read), message_events("end_turn", *SAID[2:6])]
    model = scripted("Nothing else.")
    async with elsewhere("/v1/messages", answers) as other:
        first = await claude(desk, (other, "sk-other"), mcp, "What do two berths cost?")
    assert first[-1]["result"] == "They cost 80 euros."
    async with answering(database, model=model) as client:
        later = await claude(desk, place(client), mcp, "--continue", "Anything?")
        assert refused(client) == []
    assert later[-1]["result"] == "Nothing else."
    (prompt,) = model.prompts
    places = [prompt.index(text) for text in ("1\told", "berth prices", "harbour.example", "They cost 80 euros.")]
    assert places == sorted(places) and "only_they_read_it" not in prompt


async def test_codex_holds_an_answer_to_a_schema(database: Database, desk: Desk, mcp: ToolServer) -> None:
    (desk.folder / "schema.json").write_text(json.dumps(NUMBER))
    model = scripted('{"n": 3}')
    async with answering(database, model=model) as client:
        events = await codex(desk, place(client), mcp, FUNCTIONS, "Count.", "--output-schema=schema.json")
    assert done(events) == [("agent_message", '{"n": 3}')]
    assert any('"integer"' in grammar.text for grammar in model.grammars)


async def test_claude_code_reads_edits_runs_and_goes_on_later(database: Database, desk: Desk, mcp: ToolServer) -> None:
    model = scripted(
        call("Read", file_path=str(desk.note)),
        call("Edit", file_path=str(desk.note), old_string="old", new_string="new"),
        call("Bash", command="cat note.txt", description="Read the note"),
        "It is done.",
        "Nothing else.",
    )
    async with answering(database, model=model) as client:
        first = await claude(desk, place(client), mcp, "Do it.")
        later = await claude(desk, place(client), mcp, "--continue", "Anything?")
        assert refused(client) == []
    assert [block.get("name") or block["text"] for block in blocks(first, "assistant")] == [
        *("Read", "Edit", "Bash", "It is done."),
    ]
    results = [block["content"] for block in blocks(first, "user")]
    assert "old" in results[0] and results[2] == "new"
    assert desk.note.read_text() == "new\n"
    assert (first[-1]["result"], later[-1]["result"]) == ("It is done.", "Nothing else.")
    assert len(model.prompts) == 5 and only_grow(model.prompts)


async def test_claude_code_loads_the_tools_of_its_servers_when_they_are_needed(
    database: Database, desk: Desk, mcp: ToolServer
) -> None:
    model = scripted(call("ToolSearch", query="select:mcp__far__double"), call("mcp__far__double", x=21), "It is 42.")
    async with answering(database, model=model) as client:
        events = await claude(desk, place(client), mcp, "What is twice 21?")
        assert refused(client) == []
    assert (mcp.calls, events[-1]["result"]) == ([{"x": 21}], "It is 42.")
    about = "Double a number."
    assert about not in model.prompts[0] and about in model.prompts[1] and only_grow(model.prompts)


async def test_claude_code_goes_on_when_the_model_cannot_see_what_it_reads(
    database: Database, desk: Desk, mcp: ToolServer
) -> None:
    (desk.folder / "dot.png").write_bytes(base64.b64decode(PIXEL))
    model = scripted(call("Read", file_path=str(desk.folder / "dot.png")), "I cannot see it.")
    async with answering(database, model=model) as client:
        events = await claude(desk, place(client), mcp, "What is on it?")
        assert refused(client) == []
    assert events[-1]["result"] == "I cannot see it." and "this model cannot see" in model.prompts[1]


async def test_claude_code_holds_an_answer_to_a_schema(database: Database, desk: Desk, mcp: ToolServer) -> None:
    async with answering(database, model=scripted(call("StructuredOutput", n=3))) as client:
        events = await claude(desk, place(client), mcp, "Count.", f"--json-schema={json.dumps(NUMBER)}")
        assert refused(client) == []
    assert events[-1]["structured_output"] == {"n": 3}


async def test_claude_code_gets_thoughts_and_sends_them_back(database: Database, desk: Desk, mcp: ToolServer) -> None:
    read = call("Read", file_path=str(desk.note))
    model = scripted(THOUGHT + read, THOUGHT + "It says old.", chat_template=THINKS)
    async with answering(database, model=model) as client:
        events = await claude(desk, place(client), mcp, "Read it.")
        assert refused(client) == []
    assert [block["type"] for block in blocks(events, "assistant")] == ["thinking", "tool_use", "thinking", "text"]
    assert events[-1]["result"] == "It says old." and only_grow(model.prompts)


async def test_codex_gets_thoughts_and_sends_them_back(database: Database, desk: Desk, mcp: ToolServer) -> None:
    read = call("exec_command", cmd="cat note.txt")
    model = scripted(THOUGHT + read, THOUGHT + "It says old.", chat_template=THINKS)
    async with answering(database, model=model) as client:
        events = await codex(desk, place(client), mcp, FUNCTIONS, "Read it.")
        assert refused(client) == []
    assert done(events) == [("command_execution", "old\n"), ("agent_message", "It says old.")]
    assert only_grow(model.prompts)


@pytest.fixture(scope="module")
def small(make_home: Callable[[], Path]) -> Iterator[Place]:
    """A worker with real weights. They may call anything, so no program has tools that do anything."""
    home = make_home()
    (home / "models.toml").write_text(f'[models.{SMALL}]\nmodel = "{weights()}"')
    limits = {"context": 4096, "streams": 1, "docs": "", "answer-tokens": 100}
    worker = Worker(home, *(f"--{name}={value}" for name, value in limits.items()), program="worker")
    ready = worker.wait_until_ready(TIMEOUT_S)
    yield f"{ready['url']}/", ready["api_key"]
    assert worker.stop() == 0


async def test_codex_reads_what_real_weights_say(small: Place, desk: Desk, mcp: ToolServer) -> None:
    (desk.folder / "schema.json").write_text(json.dumps(NUMBER))
    (desk.home / "instructions.md").write_text("Answer briefly.")
    without = ("shell_tool", "unified_exec", "goals", "multi_agent", "view_image", "plugins", "apps")
    events = await codex(
        *(replace(desk, may_fail=True), small, mcp, SMALL, "Count.", "--output-schema=schema.json"),
        f'--config=model_instructions_file="{desk.home}/instructions.md"',
        *("--config=mcp_servers.far.enabled=false", '--config=web_search="disabled"'),
        *(f"--disable={feature}" for feature in without),
    )
    if events[-1]["type"] == "turn.completed":
        assert isinstance(json.loads(done(events)[-1][1])["n"], int)
    else:
        assert "max_output_tokens" in events[-1]["error"]["message"], events[-1]


async def test_claude_code_reads_what_real_weights_say(small: Place, desk: Desk, mcp: ToolServer) -> None:
    alone = ("--tools=", "--disallowedTools=mcp__far", "--system-prompt=Answer briefly.", f"--model={SMALL}")
    events = await claude(replace(desk, may_fail=True), small, mcp, "Say hello.", *alone)
    said = blocks(events, "assistant")
    assert said[0]["type"] == "text" and said[0]["text"]
    assert events[-1]["result"] == said[-1]["text"]
