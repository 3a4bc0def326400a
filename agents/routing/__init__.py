"""Which of several models computes a step: the policies, what they decide by, and what they expect it to cost. Pure."""
