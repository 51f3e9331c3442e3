"""A gate without a GPU: compile the kernels that the rows launch at both commits, and compare the machine code.

worker (one process an arm) -> compared -> report: what runs a commit's code shares plain data with what judges it.
"""
