"""Attention page: time and memory of our implementations and of their peers."""
