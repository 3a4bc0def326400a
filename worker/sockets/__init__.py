"""Responses over a WebSocket: one connection, its requests in order, and what only it remembers."""
