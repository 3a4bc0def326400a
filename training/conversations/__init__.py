"""Conversations to learn from: invented from a seed, endless, in the very format that the platform sends."""
