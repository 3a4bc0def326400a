"""Sessions that arrive whether or not the server keeps up: the rate at which answers are in time. See `__main__`."""
