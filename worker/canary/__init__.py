"""Canaries: a share of conversations answered by another agent, and what became of both kinds."""
