"""A chat model whose tokens are computed by engines in other processes."""
