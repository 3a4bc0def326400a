"""Evals: the same cases asked of two configurations, and whether one of them is worse."""
