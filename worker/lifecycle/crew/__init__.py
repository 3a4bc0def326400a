"""Several workers on one port that share one engine, under one command."""
