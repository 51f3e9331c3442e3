"""Studies of attention: speed beside every other implementation, memory of eager attention, tiles."""
