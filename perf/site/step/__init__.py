"""Training step page: time and memory by phase and variant."""
