"""Items to and from the JSON shape of the public contract, which is also the shape in which they are stored.

Reading is lenient where the contract has short forms (a message without `type`, content as a plain string) and
strict about everything else: a ValueError names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from agents.message import (
    Citation,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Role,
    Status,
    new_id,
)

CALL_ID_CHARS_MAX = 128  # ours have 53, the official clients' up to 64
NAME_CHARS_MAX = 64  # the contract's limit for names of functions
TEXT_PARTS = ("input_text", "output_text", "text")
OWN = "firsttoken_"

T = TypeVar("T")


def to_payload(item: Item) -> dict[str, Any]:
    """The item as the public contract shows it, complete with `id`, `type` and `status`."""
    match item:
        case Message():
            body: dict[str, Any] = {"type": "message", "role": item.role, "content": [_content(item)]}
        case FunctionCall():
            body = {
                "type": "function_call",
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.arguments,
            }
        case FunctionCallOutput():
            body = {"type": "function_call_output", "call_id": item.call_id, "output": item.output}
        case FileSearchCall():
            body = {"type": "file_search_call", "queries": list(item.queries), "results": list(item.results)}
    return {"id": item.id, **body, "status": item.status}


def annotation(citation: Citation) -> dict[str, Any]:
    """A citation as the contract's `url_citation`; own keys lead to the exact span of the source."""
    return {
        "type": "url_citation",
        "url": f"/v1/files/{citation.file_id}/content#char={citation.start_char},{citation.end_char}",
        "title": citation.title,
        "start_index": citation.start_index,
        "end_index": citation.end_index,
        OWN + "number": citation.number,
        OWN + "file_id": citation.file_id,
        OWN + "filename": citation.filename,
        OWN + "start_char": citation.start_char,
        OWN + "end_char": citation.end_char,
    }


def from_payload(payload: Mapping[str, Any]) -> Item:
    """The item that a payload describes; a missing id is made up. Raises ValueError naming the field."""
    kind = payload.get("type", "message" if "role" in payload else None)
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise ValueError(f"type: must be one of {', '.join(_READERS)}")
    return read(payload)


def new_item(payload: Mapping[str, Any]) -> Item:
    """An item that comes from outside: as from_payload, but with an id of our own and without anybody's results."""
    item = from_payload({key: value for key, value in payload.items() if key != "id"})
    match item:
        case Message():
            return replace(item, status="completed")
        case FileSearchCall():
            return replace(item, results=())
    return item


def _content(message: Message) -> dict[str, Any]:
    if message.role != "assistant":
        return {"type": "input_text", "text": message.text}
    annotations = [annotation(citation) for citation in message.citations]
    return {"type": "output_text", "text": message.text, "annotations": annotations, "logprobs": []}


def _message(payload: Mapping[str, Any]) -> Message:
    text, citations = _texts(payload.get("content"), "content")
    return Message(
        role=_one_of(payload, "role", get_args(Role)),
        text=text,
        citations=citations,
        status=_status(payload),
        id=_id(payload, "msg"),
    )


def _function_call(payload: Mapping[str, Any]) -> FunctionCall:
    return FunctionCall(
        call_id=_text(payload, "call_id", CALL_ID_CHARS_MAX),
        name=_text(payload, "name", NAME_CHARS_MAX),
        arguments=_string(payload, "arguments"),
        status=_status(payload),
        id=_id(payload, "fc"),
    )


def _function_call_output(payload: Mapping[str, Any]) -> FunctionCallOutput:
    return FunctionCallOutput(
        call_id=_text(payload, "call_id", CALL_ID_CHARS_MAX),
        output=_texts(payload.get("output"), "output")[0],
        status=_status(payload),
        id=_id(payload, "fco"),
    )


def _file_search_call(payload: Mapping[str, Any]) -> FileSearchCall:
    queries = payload.get("queries") or []
    results = payload.get("results") or []
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("queries: must be a list of strings")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise ValueError("results: must be a list of objects")
    return FileSearchCall(tuple(queries), tuple(results), _status(payload), _id(payload, "fs"))


_READERS: dict[str, Callable[[Mapping[str, Any]], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "file_search_call": _file_search_call,
}


def _texts(content: object, field: str) -> tuple[str, tuple[Citation, ...]]:
    """A string, or the texts of the parts joined by line breaks with the citations moved along."""
    if isinstance(content, str):
        return _storable(content, field), ()
    if not isinstance(content, Sequence):
        raise ValueError(f"{field}: must be a string or a list of text parts")
    text = ""
    citations: list[Citation] = []
    for number, part in enumerate(content):
        at = f"{field}[{number}]"
        if not isinstance(part, Mapping):
            raise ValueError(f"{at}: must be an object")
        if part.get("type") not in TEXT_PARTS:
            raise ValueError(f"{at}.type: {str(part.get('type'))[:40]!r} is not supported, only text is")
        text += "\n" if number else ""
        citations += _citations(part.get("annotations") or (), len(text))
        text += _string(part, "text", at)
    return text, tuple(citations)


def _citations(annotations: object, offset: int) -> list[Citation]:
    """Our own annotations; those of other servers point at sources that nobody here can open."""
    if not isinstance(annotations, Sequence):
        return []
    return [
        Citation(
            number=_typed(note, OWN + "number", int),
            start_index=offset + _typed(note, "start_index", int),
            end_index=offset + _typed(note, "end_index", int),
            file_id=_string(note, OWN + "file_id"),
            filename=_string(note, OWN + "filename"),
            title=_string(note, "title"),
            start_char=_typed(note, OWN + "start_char", int),
            end_char=_typed(note, OWN + "end_char", int),
        )
        for note in annotations
        if isinstance(note, Mapping) and OWN + "number" in note
    ]


def _id(payload: Mapping[str, Any], prefix: str) -> str:
    return _text(payload, "id", CALL_ID_CHARS_MAX) if payload.get("id") is not None else new_id(prefix)


def _status(payload: Mapping[str, Any]) -> Status:
    if payload.get("status") is None:
        return "completed"
    return _one_of(payload, "status", get_args(Status))


def _one_of(payload: Mapping[str, Any], field: str, allowed: tuple[T, ...]) -> T:
    value = payload.get(field)
    for choice in allowed:
        if choice == value:
            return choice
    raise ValueError(f"{field}: must be one of {', '.join(map(str, allowed))}")


def _text(payload: Mapping[str, Any], field: str, chars_max: int) -> str:
    value = _string(payload, field)
    if not 1 <= len(value) <= chars_max:
        raise ValueError(f"{field}: must have 1 to {chars_max} characters")
    return value


def _string(payload: Mapping[str, Any], field: str, at: str = "") -> str:
    return _storable(_typed(payload, field, str, at), f"{at}.{field}" if at else field)


def _typed(payload: Mapping[str, Any], field: str, kind: type[T], at: str = "") -> T:
    value = payload.get(field)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{at + '.' if at else ''}{field}: must be {_NAMES[kind]}")
    return value


_NAMES: dict[type, Literal["a string", "an integer"]] = {str: "a string", int: "an integer"}


def _storable(text: str, field: str) -> str:
    """Postgres holds every text but NUL, and no encoder takes half a surrogate pair."""
    if "\0" in text:
        raise ValueError(f"{field}: must not contain the NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field}: must be valid Unicode, without lone surrogates") from None
    return text
