"""Evals: the same cases run against two configurations, to find out whether one of them is worse."""
