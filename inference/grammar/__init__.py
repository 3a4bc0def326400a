"""Grammars that constrain generated text: JSON, JSON of a schema, tool calls. Written for llguidance."""
