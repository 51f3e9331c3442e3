"""Named selections of cases: each is one pattern for `asv run -b`."""

SETS = {
    # At most 60 cells: ours where a kernel author looks first, and one control.
    "history": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192|65536), (64|128), 'bfloat16', '\w+', 'triton'\)"
        r"|attention\.FlashAttention\.track_\w+\(8192, (64|128), 'float32', '\w+', 'triton'\)"
        r"|controls\.Controls\.track_time\('matmul', 'cold'\)"
    ),
    "quick": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192), 64, 'bfloat16', '\w+', '\w+'\)"
        r"|controls\.Controls\.track_time\('(matmul|copy)', 'cold'\)"
    ),
    "smoke": r"^smoke\.",
    "gpu": r"^(?!smoke\.)",
}
"""Name -> regular expression, searched for in `module.Class.method(params)` as asv does."""
