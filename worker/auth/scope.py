"""What a credential may be used for. Apart from the caller, since the command line needs no more of it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Scope(StrEnum):
    CHAT = "chat"  # call the models, read and continue what is stored, see the latencies of one's own responses
    INGEST = "ingest"  # upload files, create stores, and remove them
    OPS = "ops"  # see the metrics and the latencies of all tenants
    ADMIN = "admin"  # list and end the sessions of the tenant, read its audit log


USUAL = frozenset({Scope.CHAT, Scope.INGEST})
ALL = frozenset(Scope)


def known(names: Iterable[str]) -> frozenset[Scope]:
    """The names that are known scopes: one that only a newer version knows grants nothing here."""
    given = frozenset(names)
    return frozenset(scope for scope in Scope if scope in given)
