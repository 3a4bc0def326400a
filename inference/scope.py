"""The scope of a cache entry: who may reuse it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Prompts share cached beginnings within one scope only: those of one tenant that are computed the same way.

    `exact` requests compute theirs in their own way, see `Request.batchable` and `Request.lasting`, so their cache is
    their own too. Beginnings that hold nothing of any tenant are shared beyond the scope: see `kvcache.shared_prefixes`.
    """

    tenant: str
    exact: bool = False
