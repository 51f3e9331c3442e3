"""Closed forms: what parameters, arithmetic, memory and communication of training must be.

One Transformer LM on one GPU: `compute` (parameters, FLOPs), `kept` (what a forward keeps for its backward), `peak`
(memory of a step and of a forward), `attention` (one attention alone), `checkpointing`, `course` (the course's own
model, whose published numbers differ from ours). Several devices: `collectives` (rings), `buckets`, `sharding` (memory
and volume of ZeRO), `parallelism` (up to how many devices each form is worth it), `mesh` (the course's XXL on a torus).
`roofline`: the least time that arithmetic and traffic allow.

Pure functions of sizes, standard library only. Bytes are integers; GiB = 2^30, GB = 10^9. B, T, d, f, L, H, V are
batch, seq_len, d_model, d_ff, num_layers, num_heads, vocab_size; P is the number of parameters; C is FLOP/s and W
bytes/s of one device, N the number of devices.
"""
