"""A worker that embeds no passage before there is a file `read` in its home."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.serving import run_command


def hold() -> None:
    from inference.embedding.embedder import Embedder

    embed, let_go = Embedder.embed_windows, Path(sys.argv[sys.argv.index("--home") + 1]) / "read"

    async def embed_later(self: Embedder, texts: Sequence[str]) -> Any:
        while not let_go.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return await embed(self, texts)

    Embedder.embed_windows = embed_later  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(run_command(hold))
