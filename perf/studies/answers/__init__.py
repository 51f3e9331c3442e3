"""The course's questions, answered by tables of measured rows."""
