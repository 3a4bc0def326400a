"""`firsttoken version`."""

from __future__ import annotations

from worker.config import VERSION, Config


async def show_version(config: Config) -> None:
    print(f"firsttoken {VERSION}")
