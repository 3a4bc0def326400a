"""Sessions that arrive whether or not the server keeps up: at which rate answers are in time. See `__main__`."""
