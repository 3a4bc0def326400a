"""Runs the scenarios of a client and prints what they return as one line of JSON: by name, or the error of each.

All in one process, because most of its time goes into importing the client.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

BASE_URL = os.environ["CLIENT_TEST_URL"]
API_KEY = os.environ["CLIENT_TEST_KEY"]
MODEL = "demo-chat"


def run(**scenarios: Callable[[], Any]) -> None:
    print(json.dumps(asyncio.run(_told(scenarios))), flush=True)
    os._exit(0)  # threads of clients that would report their use may hang where there is no network


async def _told(scenarios: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """In one event loop, as clients keep connections between their calls."""
    told: dict[str, Any] = {}
    for name, scenario in scenarios.items():
        try:
            said = scenario()
            told[name] = await said if inspect.isawaitable(said) else said
        except Exception:
            told[name] = traceback.format_exc()
    return told
