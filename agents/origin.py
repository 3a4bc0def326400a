"""The origin of a server on the web: its scheme, host and port. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """The origin in its one spelling, such as "https://tools.example:8443". Raises ValueError for what is no plain URL
    of a server, or contains a password."""
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise ValueError("is not a web address")
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname or parts.port == 0:
        raise ValueError("is not a web address that begins with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user or a password")
    if parts.fragment:
        raise ValueError("must not contain a fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = f":{parts.port}" if parts.port not in (None, PORTS[parts.scheme]) else ""
    return f"{parts.scheme}://{host}{port}"


def origins_of(text: str) -> frozenset[str]:
    """Origins, separated by commas. Raises ValueError with the rest of a sentence about the text."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if origin_of(part) != part:
            raise ValueError(f"must be origins such as https://tools.example, not {part!r}")
    return frozenset(parts)
