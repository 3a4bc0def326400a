"""Conversion of items to and from the JSON shape of the public contract, in which they are also stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.call_payload import (
    CALLS,
    OUTPUTS,
    call_of,
    call_payload,
    content_of,
    content_payload,
    output_of,
    output_payload,
    tool_payloads,
    tools_of,
)
from agents.function_tool import described
from agents.message import (
    Citation,
    Compaction,
    ConfigurationUpdate,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    SearchResult,
    ToolListing,
    storable,
)
from inference.generation import TokenLogprob

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
            return FileSearchCall(tuple(payload["queries"]), tuple(map(_result, payload["results"])), **kept)
        case kind if kind == LISTING:
            return ToolListing(payload["server_label"], tuple(payload["tools"]), payload["error"] or "", **kept)
        case kind if kind == UPDATE:
            reasoning, answer = payload["reasoning"] or {}, payload["text"] or {}
            return ConfigurationUpdate(reasoning.get("effort"), answer.get("format"), **kept)
        case "compaction":
            return Compaction(payload["encrypted_content"], **kept)
    raise ValueError(f"there is no item type {payload['type']!r}")


def _result_payload(result: SearchResult) -> dict[str, Any]:
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


def _result(payload: Mapping[str, Any]) -> SearchResult:
    """Our own keys may be missing: the first versions stored none."""
    return SearchResult(
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
