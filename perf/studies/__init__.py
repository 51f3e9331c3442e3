"""One-off questions, each answered by a table: `python -m perf study NAME`."""
