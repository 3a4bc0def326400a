"""Engines in processes of their own: how a worker reaches them, and how they serve."""
