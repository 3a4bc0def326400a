"""Whether answers are right, cite what they say, and are not given where there is none."""
