"""What stands between the network and the handlers: connections, deadlines, bodies and their limits."""
