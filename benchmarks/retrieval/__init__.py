"""The quality and speed of retrieval."""
