"""What every request passes between its connection and its handler, and what all handlers share."""
