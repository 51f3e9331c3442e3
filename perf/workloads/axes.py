"""Names of the axes that each workload reads: of another name it would not know, and measure something else."""

_STEP = {"batch", "context_length", "mode", "precision", "size", "variant"}
_ATTENTION = {"batch", "d", "d_model", "dtype", "impl", "is_causal", "kv_heads", "mode", "seq_len", "tokens"}

AXES = {
    "attention": _ATTENTION,
    "attention_leaderboard": {"d", "dtype", "impl", "num_heads", "seq_len"},
    "collectives": {"megabytes", "world_size"},
    "compiled_step": _STEP | {"attention", "model"},
    "controls": {"control"},
    "data_parallel": _STEP | {"bucket_size_mb", "strategy", "world_size"},
    "fully_sharded": _STEP | {"compute_dtype", "sharding", "world_size"},
    "host": _ATTENTION | _STEP | {"attention", "model"},
    "linear_cross_entropy": {"d_model", "dtype", "impl", "mode", "tokens", "vocab_size"},
    "sharded_optimizer": _STEP | {"sharding", "world_size"},
    "transformer": _STEP | {"attention", "model"},
}
"""By workload; a class of a workload that is missing here is refused. Its clock and cache may be axes, too."""
