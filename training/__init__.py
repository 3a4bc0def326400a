"""How the bundled models were made: trained on invented conversations, distilled, written as GGUF, judged.

Nothing of the platform imports this package, and PyTorch is needed for nothing else.
"""
