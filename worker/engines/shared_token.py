"""The token that an engine on a network shares with its workers."""

from __future__ import annotations

import re

from worker.config import Config
from worker.errors import StartError

SHAPE = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")  # valid in a header, and long enough that nobody guesses it


def read_token(config: Config) -> str | None:
    """Raises StartError if it cannot be read or used."""
    token = config.engine_token
    if token is None and config.token_file is not None:
        try:
            token = config.token_file.expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise StartError(f"{config.token_file} cannot be read: {reason} (--token-file)") from error
    if token is not None and not SHAPE.fullmatch(token):
        raise StartError(
            "the token of the engines must be 16 to 512 letters, digits or ._~+/=- "
            "(--token-file, FIRSTTOKEN_ENGINE_TOKEN); make one with: openssl rand -hex 32"
        )
    return token
