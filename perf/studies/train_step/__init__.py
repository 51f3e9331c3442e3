"""How fast the whole training step is, beside another way to run it."""
