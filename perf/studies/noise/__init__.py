"""How far two measurements of the same code differ, and why."""
