"""The engine against llama-server: the same kernels, model and threads, side by side. See `__main__`."""
