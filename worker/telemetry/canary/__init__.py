"""Canaries: a share of conversations answered by another agent, and the comparison of both arms."""
