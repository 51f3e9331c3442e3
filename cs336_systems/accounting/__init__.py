"""Closed forms for the parameters, arithmetic, memory and communication of training.

One Transformer LM on one GPU: `compute` (parameters, FLOPs), `kept` (activations kept for the backward), `peak` (memory
of a step and of a forward), `attention` (one attention operator), `checkpointing`. Several devices: `collectives`
(rings, buckets), `sharding` (memory and traffic of ZeRO), `fully_sharded` (the same of our FSDP, by layer),
`sharded_step` (the leaderboard's step of 2026), `parallelism` (how many devices each form can use), `mesh` (the
course's XXL on a torus).

Pure functions of sizes, standard library only. Bytes are integers where the form is exact; GiB = 2^30, GB = 10^9. B,
T, d, f, L, H, V are batch, seq_len, d_model, d_ff, num_layers, num_heads, vocab_size; P is the number of parameters; C
is FLOP/s and W bytes/s of one device, N the number of devices.
"""
