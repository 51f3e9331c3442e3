"""What holds the memory of a forward and of a training step."""
