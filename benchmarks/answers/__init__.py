"""Measures whether answers are right and cite their source, and whether unanswerable questions are declined."""
