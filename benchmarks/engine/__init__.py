"""The engine compared with llama-server: the same kernels, model and threads. See `__main__`."""
