"""Responses over a WebSocket: one connection, its requests in order, and the state that only it keeps."""
