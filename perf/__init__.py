"""How `cs336_systems` is measured and judged: asv's benchmark directory.

asv imports every module below here when it discovers benchmarks, so none has side effects, and torch and the
measured package are imported inside functions only.
"""
