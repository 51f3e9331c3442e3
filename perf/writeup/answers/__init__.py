"""Functions from rows to the figures and tables of the answers to the course; the sentences are in the templates."""
