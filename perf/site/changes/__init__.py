"""Where in the history a number changed: every step of a series, under the commit that made it."""
