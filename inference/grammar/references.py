"""Finds what a reference in a JSON schema leads to. Only the document itself is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    schema: Any
    base: str


class References:
    """Those of one document, of which the whole is a schema."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def find(self, reference: str, base: str) -> Target | None:
        """None if it leads nowhere."""
        found = self._document
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return None
            found = found[key]
        return Target(found, base)


def base_of(schema: Any, outer: str) -> str:
    """The URI to which the references in a schema are relative."""
    return outer
