"""The whole training step beside another way to run it."""
