"""Closed forms for one Transformer LM on one GPU: what its parameters, arithmetic and memory must be.

`compute`: parameters and FLOPs. `kept`: what a forward keeps for its backward. `peak`: memory of a step and of a
forward. `course`: the course's own model, whose published numbers differ from ours. Pure functions of sizes, standard
library only. Bytes are integers; GiB = 2^30. B, T, d, f, L, H, V are batch, seq_len, d_model, d_ff, num_layers,
num_heads, vocab_size; P is the number of parameters.
"""
