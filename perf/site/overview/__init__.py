"""What is measured on each machine, up to which commit, and what the last gates said."""
