"""Grammars that hold generated text to a form: JSON, JSON of a schema, tool calls. Written for llguidance."""
