"""Compare two commits: evidence, statistics, verdicts, their explanation and the comment."""
