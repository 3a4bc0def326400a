"""Which of several models runs a step: the policies, their inputs, and the expected costs. Pure."""
