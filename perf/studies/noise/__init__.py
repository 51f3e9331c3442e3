"""Differences between measurements of the same code, and their sources."""
