"""Memory of a forward and of a training step by what holds it."""
