"""Several workers on one port, with one engine for all of them, under one command."""
