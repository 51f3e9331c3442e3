"""How fast attention is, ours beside every other, and what memory eager attention takes."""
