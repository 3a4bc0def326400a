"""How the adapter of smol-chat is made: trained on generated conversations, written as GGUF, judged by the gate.

Nothing of the platform imports this package, and PyTorch is needed for nothing else.
"""
