"""Files as clients send and receive them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from retrieval.records import Upload
from worker.errors import ApiError

PURPOSES = ("assistants", "batch", "user_data", "vision")
NAME_CHARS_MAX = 255


def file_object(file: Upload) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def deleted_file_object(file_id: str) -> dict[str, Any]:
    return {"id": file_id, "object": "file", "deleted": True}


def purpose_of(fields: Mapping[str, str]) -> str:
    """Raises ApiError 400, also for a field without effect."""
    for name in fields:
        if name != "purpose":
            message = f"This server does not support '{name}' yet: leave it out."
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    purpose = fields.get("purpose")
    if purpose not in PURPOSES:
        message = f"Invalid 'purpose': it must be {' or '.join(PURPOSES)}."
        code = "missing_required_parameter" if purpose is None else "invalid_value"
        raise ApiError(400, message, param="purpose", code=code)
    return purpose


def safe_name(filename: str | None) -> str:
    """The last component of a name, without characters that are unsafe in file systems or pages. Raises ApiError
    400.
    """
    printable = "".join(c for c in filename or "" if unicodedata.category(c)[0] != "C")
    name = PurePosixPath(printable.replace("\\", "/")).name.strip()
    if not name or name in (".", "..") or len(name) > NAME_CHARS_MAX:
        message = f"The file needs a name of 1 to {NAME_CHARS_MAX} characters; its extension selects the loader."
        raise ApiError(400, message, param="file", code="invalid_value")
    return name
