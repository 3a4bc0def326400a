"""The lowest tier of the KV cache: conversations and shared prefixes in files, which survive restarts."""

from inference.kvcache.disk.file import KvFile, UnreadableFile
from inference.kvcache.disk.index import BLOCK, DiskIndex, IndexedState, chain, digest_of
from inference.kvcache.disk.tier import DiskTier, Found

__all__ = ["BLOCK", "DiskIndex", "DiskTier", "Found", "IndexedState", "KvFile", "UnreadableFile", "chain", "digest_of"]
