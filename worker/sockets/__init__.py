"""Responses over a WebSocket: one connection, its requests in order, and what only it remembers."""

from __future__ import annotations

from worker.sockets.connection import Connection
from worker.sockets.register import Sockets

__all__ = ["Connection", "Sockets"]
