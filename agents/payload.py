"""Conversion of items to and from the JSON shape of the public contract, in which they are also stored: text with
pictures in it is parts, and each built-in tool has items of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from agents.function_tool import (
    INPUT,
    CallForm,
    CallShape,
    FunctionTool,
    InputGrammar,
    bare,
    custom_tool,
    described,
    qualified,
)
from agents.message import (
    CallResult,
    Citation,
    Compaction,
    ConfigurationUpdate,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    Reasoning,
    Status,
    ToolListing,
    storable,
)
from inference.generation import TokenLogprob
from inference.picture import Picture
from inference.prompt import PlacedPicture
from retrieval.passage import Passage


def content_payload(text: str, pictures: Sequence[PlacedPicture]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    begin = 0
    for placed in pictures:
        if before := text[begin : placed.at]:
            parts.append({"type": "input_text", "text": before})
        data = base64.b64encode(placed.picture.data).decode()
        url = f"data:{placed.picture.media_type};base64,{data}"
        parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
        begin = placed.at
    if (rest := text[begin:]) or not parts:
        parts.append({"type": "input_text", "text": rest})
    return parts


def content_of(parts: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[PlacedPicture, ...]]:
    """The inverse of `content_payload`. Raises KeyError and ValueError for what is none."""
    if not parts:
        raise ValueError("an item has parts")
    return joined([part["text"] if "text" in part else picture_of(part["image_url"]) for part in parts])


def joined(parts: Sequence[str | Picture], between: str = "\n") -> tuple[str, tuple[PlacedPicture, ...]]:
    """One text, and the places of the pictures in it. `between` stands between two texts: a text begins a line behind
    another one, not behind a picture, as in llama-server."""
    text, pictures = "", list[PlacedPicture]()
    for before, part in zip([None, *parts], parts, strict=False):
        if isinstance(part, Picture):
            pictures.append(PlacedPicture(len(text), part))
        else:
            text += between + part if isinstance(before, str) else part
    return text, tuple(pictures)


def picture_of(url: str) -> Picture:
    """The picture in a data URL. Raises ValueError for another URL, and for what is not base64."""
    head, comma, data = url.partition(",")
    media_type, _, coding = head.removeprefix("data:").partition(";")
    if not comma or not head.startswith("data:") or coding != "base64":
        raise ValueError("not a data URL in base64")
    return Picture.of(media_type, base64.b64decode(data, validate=True))


CALLS: Mapping[str, CallForm] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "tool_search_call": "tool_search",
    "local_shell_call": "local_shell",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcp_approval",
    "web_search_call": "hosted",
    "code_interpreter_call": "hosted",
    "image_generation_call": "hosted",
}
OUTPUTS: Mapping[str, CallForm] = {
    "function_call_output": "function",
    "custom_tool_call_output": "custom",
    "tool_search_output": "tool_search",
    "local_shell_call_output": "local_shell",
    "shell_call_output": "shell",
    "apply_patch_call_output": "apply_patch",
    "mcp_approval_response": "mcp_approval",
}
CALL_TYPES = {form: type for type, form in CALLS.items()}
OUTPUT_TYPES = {form: type for type, form in OUTPUTS.items()}
# Keys of our own: of an output that is more than the tools it adds, of a call that another one precedes in its step,
# and of a request for approval that came back.
_CALL = "_call"
# Of a patch that was cut off: in the contract, every operation has a type and a path.
_UNFINISHED = {"type": "update_file", "path": "", "diff": ""}
_ASKED = ("action", "code", "container_id", "revised_prompt")  # of hosted tools
OUTPUT, JOINED, CALL_ID = "firsttoken_output", "firsttoken_joined", "firsttoken_call_id"
DENIED = "Error: The user did not allow this call."


def call_payload(call: FunctionCall) -> dict[str, Any]:
    payload = _call_payload(call)
    return {**payload, JOINED: True} if call.joined else payload


def _call_payload(call: FunctionCall) -> dict[str, Any]:
    shape = call.shape
    head: dict[str, Any] = {"type": CALL_TYPES[shape.form], "call_id": call.call_id}
    match shape.form:
        case "function":
            return {**head, **_named(call), "arguments": call.arguments}
        case "custom":
            return {**head, **_named(call), "input": input_of(call.arguments)}
        case "tool_search":
            return {**head, "execution": _execution(shape), "arguments": parsed(call.arguments)}
        case "apply_patch":
            operation = {**_UNFINISHED, **parsed(call.arguments)}
            if operation.get("type") == "delete_file":
                operation.pop("diff", None)
            return {**head, "operation": operation}
        case "local_shell":
            return {**head, "action": {"type": "exec", "command": [], "env": {}, **parsed(call.arguments)}}
        case "shell":
            return {**head, "action": {"commands": [], **parsed(call.arguments)}, "environment": None}
        case "mcp" | "mcp_approval":
            return {"type": head["type"], **_of_server(call)}
        case "hosted":
            told = parsed(call.result.output) if call.result else {}
            return {"type": f"{call.name}{_CALL}", **parsed(call.arguments), **told}


def _of_server(call: FunctionCall) -> dict[str, Any]:
    """A request for approval that comes back gets a new id: its call is named by the first one."""
    label = call.shape.namespace
    told: dict[str, Any] = {"server_label": label, "name": bare(label, call.name), "arguments": call.arguments}
    if call.shape.form == "mcp_approval":
        return told | {CALL_ID: call.call_id} if call.call_id != call.id else told
    output, failed = call.result or (None, False)
    return told | {
        "approval_request_id": call.call_id if call.call_id != call.id else None,
        "output": None if failed else output,
        "error": {"type": "mcp_tool_execution_error", "content": output} if failed else None,
        **({"status": "failed"} if failed else {}),
    }


def call_of(payload: Mapping[str, Any]) -> FunctionCall:
    """The inverse of `call_payload`. Raises KeyError and TypeError for what is none."""
    form, namespace = CALLS[payload["type"]], payload.get("namespace") or ""
    shape = CallShape(form, namespace, by_server=payload.get("execution") == "server")
    joined = payload.get(JOINED, False)
    match form:
        case "mcp" | "mcp_approval":
            return _server_call_of(payload, joined=joined)
        case "hosted":
            return hosted_call(payload)
        case "function":
            name, arguments = payload["name"], payload["arguments"]
        case "custom":
            name, arguments = payload["name"], written({INPUT: payload["input"]})
        case "tool_search":
            name, arguments = form, written(payload["arguments"])
        case "apply_patch":
            operation = payload["operation"]
            name, arguments = form, written({**operation, "diff": operation.get("diff") or ""})
        case _:
            action = payload["action"].items()
            name, arguments = form, written({key: each for key, each in action if key != "type" and each != {}})
    return FunctionCall(
        *(payload["call_id"], qualified(namespace, name), arguments, payload["status"], payload["id"], shape),
        joined=joined,
    )


def _server_call_of(payload: Mapping[str, Any], *, joined: bool) -> FunctionCall:
    form, label, result = CALLS[payload["type"]], payload["server_label"], None
    if (error := payload.get("error")) is not None:
        result = CallResult(error_text(error), failed=True)
    elif (output := payload.get("output")) is not None:
        result = CallResult(output)
    return FunctionCall(
        payload.get("approval_request_id") or payload.get(CALL_ID) or payload["id"],
        qualified(label, payload["name"]),
        payload["arguments"],
        "completed" if result else payload["status"],
        payload["id"],
        CallShape(form, label, by_server=form == "mcp"),
        result,
        joined,
    )


def hosted_call(payload: Mapping[str, Any]) -> FunctionCall:
    """A call that another server ran, with what the model may read of it: an image is none of it."""
    made = {"status": payload.get("status") or "completed"}
    if payload.get("outputs") is not None:
        made["outputs"] = payload["outputs"]
    asked = {key: payload[key] for key in _ASKED if payload.get(key) is not None}
    id = payload["id"]
    shape = CallShape("hosted", by_server=True)
    name = str(payload["type"]).removesuffix(_CALL)
    return FunctionCall(id, name, _sorted(asked), id=id, shape=shape, result=CallResult(_sorted(made)))


def _sorted(value: Any) -> str:
    """JSON that stays the same in a database that orders keys in its own way."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def error_text(error: Any) -> str:
    """The text of the error of an MCP call, in one of the forms of the public contract."""
    if isinstance(error, dict):
        error = error.get("content", error.get("message", error))
    return error if isinstance(error, str) else written(error)


def decision(approve: bool, reason: str | None) -> tuple[Status, str]:
    """Status and text of the user's decision about a call. What is allowed is answered by the result of the call."""
    return ("completed", "") if approve else ("failed", " ".join(filter(None, (DENIED, reason))))


def output_payload(item: FunctionCallOutput) -> dict[str, Any]:
    form = item.shape.form
    head: dict[str, Any] = {"type": OUTPUT_TYPES[form], "call_id": item.call_id}
    match form:
        case "mcp_approval":
            reason = item.output.removeprefix(DENIED).strip() or None
            approval = {"approve": item.status == "completed", "reason": reason}
            return {"type": head["type"], "approval_request_id": item.call_id, **approval}
        case "tool_search":
            more = {} if item.tools else {OUTPUT: item.output}
            return {**head, "execution": _execution(item.shape), "tools": tool_payloads(item.tools), **more}
        case "shell":
            return {**head, "output": json.loads(item.output), "max_output_length": None}
    return {**head, "output": content_payload(item.output, item.pictures) if item.pictures else item.output}


def output_of(payload: Mapping[str, Any]) -> FunctionCallOutput:
    """The inverse of `output_payload`. Raises KeyError and TypeError for what is none."""
    form, tools = OUTPUTS[payload["type"]], tools_of(payload.get("tools", ()))
    match form:
        case "mcp_approval":
            status, decided = decision(payload["approve"], payload.get("reason"))
            call_id = payload["approval_request_id"]
            return FunctionCallOutput(call_id, decided, status, payload["id"], CallShape(form))
        case "tool_search":
            output = payload.get(OUTPUT) or described(tools)
        case "shell":
            output = written(payload["output"])
        case _:
            output = payload["output"]
    shape, pictures = CallShape(form, by_server=payload.get("execution") == "server"), tuple[PlacedPicture, ...]()
    if isinstance(output, list):
        output, pictures = content_of(output)
    return FunctionCallOutput(payload["call_id"], output, payload["status"], payload["id"], shape, tools, pictures)


def tool_payloads(tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """Definitions; those of a namespace are within it."""
    payloads: list[dict[str, Any]] = []
    for namespace, group in groupby(tools, lambda tool: tool.shape.namespace):
        inner = [_tool_payload(tool) for tool in group]
        within = {"type": "namespace", "name": namespace, "description": "", "tools": inner}
        payloads += [within] if namespace else inner
    return payloads


def tools_of(payloads: Iterable[Mapping[str, Any]], namespace: str = "") -> tuple[FunctionTool, ...]:
    """The inverse of `tool_payloads`."""
    tools: list[FunctionTool] = []
    for payload in payloads:
        if payload["type"] == "namespace":
            tools += tools_of(payload["tools"], payload["name"])
            continue
        name, description = qualified(namespace, payload["name"]), payload["description"]
        if payload["type"] == "custom":
            form = payload["format"]
            held = InputGrammar(form["syntax"], form["definition"]) if form["type"] == "grammar" else None
            tools.append(custom_tool(name, description, held, namespace, deferred=True))
        else:
            shape = CallShape(namespace=namespace)
            tools.append(FunctionTool(name, description, payload["parameters"], payload["strict"], shape, True))
    return tuple(tools)


def input_of(arguments: str) -> str:
    """The input of a custom tool, as far as it came. Arguments without one are shown as they are."""
    found = parsed(arguments).get(INPUT)
    return storable(found) if isinstance(found, str) else InputText().feed(arguments) or arguments


def parsed(arguments: str) -> dict[str, Any]:
    """The arguments of a call, as far as they are an object: those of one that was cut off are not."""
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def written(value: Any) -> str:
    """JSON as models write it, so that the tokens of a generated call are found again."""
    return json.dumps(value, ensure_ascii=False)


def _named(call: FunctionCall) -> dict[str, str]:
    if not (namespace := call.shape.namespace):
        return {"name": call.name}
    return {"name": bare(namespace, call.name), "namespace": namespace}


def _execution(shape: CallShape) -> str:
    return "server" if shape.by_server else "client"


def _tool_payload(tool: FunctionTool) -> dict[str, Any]:
    head = {"name": bare(tool.shape.namespace, tool.name), "description": tool.description, "defer_loading": True}
    if tool.shape.form == "custom":
        form = {"type": "grammar", **tool.grammar._asdict()} if tool.grammar else {"type": "text"}
        return {"type": "custom", **head, "format": form}
    return {"type": "function", **head, "parameters": dict(tool.parameters), "strict": tool.strict}


# Our own keys of annotations and search results: clients ignore them, our page opens the exact span of the source.
NUMBER, FILE_ID, FILENAME = "firsttoken_number", "firsttoken_file_id", "firsttoken_filename"
TITLE = "firsttoken_title"
ADDITIONAL_TOOLS, LISTING, UPDATE = "additional_tools", "mcp_list_tools", "configuration_update"
START_CHAR, END_CHAR = "firsttoken_start_char", "firsttoken_end_char"


def to_payload(item: Item) -> dict[str, Any]:
    """The item in the format of the public contract, complete with `id`, `type` and `status`."""
    match item:
        case Message():
            body: dict[str, Any] = {"type": "message", "role": item.role, "content": _content(item)}
            if item.tools:
                body = {"type": ADDITIONAL_TOOLS, "role": item.role, "tools": tool_payloads(item.tools)}
        case Reasoning():
            content = [{"type": "reasoning_text", "text": item.text}]
            body = {"type": "reasoning", "summary": [], "content": content}
        case FunctionCall():
            body = call_payload(item)
        case FunctionCallOutput():
            body = output_payload(item)
        case FileSearchCall():
            results = [_result_payload(result) for result in item.results]
            body = {"type": "file_search_call", "queries": list(item.queries), "results": results}
        case ToolListing():
            tools, error = list(item.tools), item.error or None
            body = {"type": LISTING, "server_label": item.label, "tools": tools, "error": error}
        case ConfigurationUpdate():
            body = {"type": UPDATE, "reasoning": item.effort and {"effort": item.effort}}
            body["text"] = item.format and {"format": dict(item.format)}
        case Compaction():
            body = {"type": "compaction", "encrypted_content": item.sealed}
    return {"id": item.id, **body, "status": body.get("status", item.status)}


def from_payload(payload: Mapping[str, Any]) -> Item:
    """The inverse of `to_payload`. Raises ValueError for a payload that is not an item."""
    try:
        return _item(payload)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"invalid item: {error!r}") from None


def annotation(citation: Citation) -> dict[str, Any]:
    """A citation as the contract's `file_citation`, extended by its position in the text and in the file."""
    return {
        "type": "file_citation",
        "file_id": citation.file_id,
        "filename": citation.filename,
        "index": citation.end_index,
        "url": f"/v1/files/{citation.file_id}/content#char={citation.start_char},{citation.end_char}",
        "title": citation.title,
        "start_index": citation.start_index,
        "end_index": citation.end_index,
        NUMBER: citation.number,
        FILE_ID: citation.file_id,
        FILENAME: citation.filename,
        START_CHAR: citation.start_char,
        END_CHAR: citation.end_char,
    }


def _content(message: Message) -> list[dict[str, Any]]:
    if message.role != "assistant":
        return content_payload(message.text, message.pictures)
    annotations = [annotation(citation) for citation in message.citations]
    logprobs = logprob_payloads(message.logprobs)
    return [{"type": "output_text", "text": message.text, "annotations": annotations, "logprobs": logprobs}]


def _item(payload: Mapping[str, Any]) -> Item:
    kept = {"status": payload["status"], "id": payload["id"]}
    match payload["type"]:
        case "message":
            if payload["role"] != "assistant":
                text, pictures = content_of(payload["content"])
                return Message(payload["role"], text, pictures=pictures, **kept)
            (part,) = payload["content"]
            citations = tuple(map(_citation, part.get("annotations", ())))
            return Message(payload["role"], part["text"], citations, **kept)
        case "reasoning":
            (part,) = payload["content"]
            return Reasoning(part["text"], **kept)
        case kind if kind in CALLS:
            return call_of(payload)
        case kind if kind in OUTPUTS:
            return output_of(payload)
        case "additional_tools":
            tools = tools_of(payload["tools"])
            return Message(payload["role"], described(tools), tools=tools, **kept)
        case "file_search_call":
            return FileSearchCall(tuple(payload["queries"]), tuple(map(_result, payload.get("results", ()))), **kept)
        case kind if kind == LISTING:
            return ToolListing(
                payload["server_label"], tuple(payload["tools"]), error_text(payload.get("error") or ""), **kept
            )
        case kind if kind == UPDATE:
            reasoning, answer = payload["reasoning"] or {}, payload["text"] or {}
            return ConfigurationUpdate(reasoning.get("effort"), answer.get("format"), **kept)
        case "compaction":
            return Compaction(payload["encrypted_content"], **kept)
    raise ValueError(f"there is no item type {payload['type']!r}")


def _result_payload(result: Passage) -> dict[str, Any]:
    return {
        "file_id": result.file_id,
        "filename": result.filename,
        "score": result.score,
        "text": result.text,
        "attributes": dict(result.attributes),
        TITLE: result.title,
        START_CHAR: result.start_char,
        END_CHAR: result.end_char,
    }


def _result(payload: Mapping[str, Any]) -> Passage:
    """Our own keys may be missing: the first versions stored none. Its store and its tokens are not kept."""
    return Passage(
        vector_store_id="",
        tokens=0,
        file_id=payload["file_id"],
        filename=payload["filename"],
        score=payload["score"],
        text=payload["text"],
        attributes=payload["attributes"],
        title=payload.get(TITLE, ""),
        start_char=payload.get(START_CHAR, 0),
        end_char=payload.get(END_CHAR, 0),
    )


def _citation(note: Mapping[str, Any]) -> Citation:
    return Citation(
        number=note[NUMBER],
        start_index=note["start_index"],
        end_index=note["end_index"],
        file_id=note[FILE_ID],
        filename=note[FILENAME],
        title=note["title"],
        start_char=note[START_CHAR],
        end_char=note[END_CHAR],
    )


def logprob_payloads(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """The log probabilities of the tokens of a text, in the public format."""
    return [
        {**_likely(each.token, each.logprob), "top_logprobs": [_likely(token, logprob) for token, logprob in each.top]}
        for each in logprobs
    ]


def _likely(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": storable(token.decode("utf-8", "replace")), "bytes": list(token), "logprob": logprob}
