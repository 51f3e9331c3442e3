"""The course's problems that have a closed form, worked: each figure with its formula and what was put into it."""
