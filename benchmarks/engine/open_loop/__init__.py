"""An open loop of sessions: the highest rate at which answers are on time. See `__main__`."""
