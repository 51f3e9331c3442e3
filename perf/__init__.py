"""The performance-regression suite of `cs336_systems`; see "Layout" in the README."""
