"""`python -m perf report`: the course's write-up from what was measured. Rows become Markdown, Markdown the rest."""
