"""Cross-origin requests (CORS, as in the Fetch standard): browser programs whose pages are served from elsewhere.

They send an API key or a JWT of their own. The session cookie is not for them, so credentials are never allowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANY = "*"
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")


@dataclass(frozen=True, slots=True)
class Cors:
    """`origins` are those whose pages may call the API; "*" for all."""

    origins: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str | None) -> Cors:
        """Origins, separated by commas. Raises ValueError with the mistake as its message."""
        origins = [part.strip().rstrip("/") for part in (text or "").split(",") if part.strip()]
        for origin in origins:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"must be * or origins such as https://example.com, not {origin!r}")
        return cls(frozenset(origins))

    def allowed(self, origin: str | None) -> str | None:
        """The origin to which a response to a request from this one is exposed."""
        if ANY in self.origins:
            return ANY
        return origin if origin in self.origins else None
