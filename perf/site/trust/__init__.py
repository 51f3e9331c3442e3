"""How far the verdicts of gate and history may be believed, from the self-tests on file."""
