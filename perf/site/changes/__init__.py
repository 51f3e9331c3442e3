"""Changes page: steps of every series, by the range of commits in question."""
