"""Two arms, taken in turn: evidence, statistics, verdicts, their explanation and the comment."""
