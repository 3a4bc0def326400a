"""Batches: files of requests, answered in the background line by line."""
