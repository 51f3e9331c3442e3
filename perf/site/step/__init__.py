"""Where the time and the memory of a training step go, and what each way to run one takes."""
