"""How `cs336_systems` is measured and judged. README, "Layout", says what each folder is for."""
