"""Measures the quality of retrieval: judged questions, metrics, and the run that combines them."""
