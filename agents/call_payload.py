"""Contents, calls and their outputs in the JSON shapes of the public contract: text with pictures in it is parts, and
each built-in tool has items of its own."""

from __future__ import annotations

import base64
import json
import re
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
from agents.message import CallResult, FunctionCall, FunctionCallOutput, Status, storable
from inference.picture import Picture
from inference.prompt import PlacedPicture


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


_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
HEAD_CHARS_MAX = 100  # more white space than any model writes; the input then comes in one piece, at the end
# Whole characters and escapes: one half of a surrogate pair waits for the other.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*'
)
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
_ASKED = ("action", "code", "container_id", "revised_prompt")  # of hosted tools
OUTPUT, JOINED, CALL_ID = "firsttoken_output", "firsttoken_joined", "firsttoken_call_id"
DENIED = "Error: The user did not allow this call."


class InputText:
    """Decodes the value in `{"input": "..."}`."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._unread = ""
        self._begun = False
        self._over = False

    def feed(self, piece: str) -> str:
        """The text that this piece of JSON completes."""
        if self._over:
            return ""
        self._unread += piece
        if not self._begun and not self._begin():
            return ""
        whole = _WHOLE.match(self._unread)
        length = whole.end() if whole else 0
        text = storable(json.loads(f'"{self._unread[:length]}"', strict=False))
        self._unread = self._unread[length:]
        self._over = self._unread.startswith('"')
        self.sent.append(text)
        return text

    def rest(self, whole: str) -> str:
        """What of the whole input was not sent: a part that was no such JSON, or ended within a character."""
        sent = "".join(self.sent)
        return whole[len(sent) :] if whole.startswith(sent) else ""

    def _begin(self) -> bool:
        head = _HEAD.match(self._unread)
        if head:
            self._unread, self._begun = self._unread[head.end() :], True
        self._over = head is None and len(self._unread) > HEAD_CHARS_MAX
        return self._begun


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
            operation = parsed(call.arguments)
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
        result = CallResult(told_of(error), failed=True)
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


def told_of(error: Any) -> str:
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
            status, decided = decision(payload["approve"], payload["reason"])
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
    namespace = call.shape.namespace
    named = {"name": bare(namespace, call.name)}
    return named | {"namespace": namespace} if namespace else named


def _execution(shape: CallShape) -> str:
    return "server" if shape.by_server else "client"


def _tool_payload(tool: FunctionTool) -> dict[str, Any]:
    head = {"name": bare(tool.shape.namespace, tool.name), "description": tool.description, "defer_loading": True}
    if tool.shape.form == "custom":
        form = {"type": "grammar", **tool.grammar._asdict()} if tool.grammar else {"type": "text"}
        return {"type": "custom", **head, "format": form}
    return {"type": "function", **head, "parameters": dict(tool.parameters), "strict": tool.strict}
