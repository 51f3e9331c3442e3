"""What low precision costs, and what it saves."""
