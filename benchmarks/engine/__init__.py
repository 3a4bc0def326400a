"""The engine compared with llama-server on the same kernels, model and threads. See `__main__`."""
