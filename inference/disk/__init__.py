"""The lowest tier of the KV cache: conversations and shared beginnings in files, found again after a restart."""

from inference.disk.blocks import BLOCK, chain, digest_of
from inference.disk.file import KvFile, UnreadableFile
from inference.disk.shelf import Shelf, Shelved
from inference.disk.tier import DiskTier, Found

__all__ = ["BLOCK", "DiskTier", "Found", "KvFile", "Shelf", "Shelved", "UnreadableFile", "chain", "digest_of"]
