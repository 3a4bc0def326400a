"""The one-time link that signs a browser in. `sign_in` takes its token."""

from __future__ import annotations


def link(url: str, token: str) -> str:
    """The link that signs a person in at the worker of this URL."""
    return f"{url}/?token={token}"
