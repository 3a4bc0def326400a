"""The base of models for clients that send every parameter they know, whether the server supports it or not."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict, ValidationInfo, model_validator

from worker.wire.ignored import note
from worker.wire.strict import Strict

SPELLABLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what may be quoted in a header


class Lenient(Strict):
    """A part of a request body whose unknown keys have no effect and are named."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _name_unknown(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for key in value:
            if key in known:
                continue
            if not SPELLABLE.fullmatch(key):
                raise ValueError("a key must have 1 to 64 letters, digits, '_', '.' and '-'")
            if value[key] is not None:
                note(info, key)
        return value
