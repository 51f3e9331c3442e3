"""RoPE's layout in checkpoints: which two dimensions of a head are rotated together.

`TransformerLM` pairs dimension i with i + head_dim / 2, so that the halves it reads are contiguous. Both editions of
the course's `BasicsTransformerLM` pair neighbours, 2i with 2i + 1 (2026 only writes the results as halves). The same
order of the rows in a head's queries and keys leaves every score as it was, so reordering them once, at loading, makes
one model of the other.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

KEY = "rope_distance"
"""Entry of a state dict: the distance of two paired dimensions, 1 for neighbours and head_dim / 2 for halves."""


def carry_rope_layout(model: nn.Module) -> None:
    """Write the layout into `model.state_dict()`, and convert what `model.load_state_dict()` gets to halves.

    A state dict without the entry is the course's or of an older `TransformerLM`. The names of the modules, which torch
    saves along, tell: only the course has a `positional_encoder`. Without them too (in a copied dict, or below a
    wrapper), it counts as the course's; set the entry otherwise. At loading, another distance raises `ValueError`, and
    neighbours of which some rows are missing (a shard) `RuntimeError`.
    """
    model.register_state_dict_post_hook(_write)
    model.register_load_state_dict_pre_hook(_convert)


def neighbours_to_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a query or key projection, (num_heads * head_dim, d_model), within each head."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def _write(model: Any, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    state_dict[prefix + KEY] = torch.tensor(model.config.head_dim // 2, device="cpu")


def _convert(
    model: Any, state_dict: dict[str, Any], prefix: str, _0: Any, _1: Any, _2: Any, _3: Any, errors: list[str]
) -> None:
    head_dim, rows = model.config.head_dim, model.config.d_model
    halves = head_dim // 2
    distance = int(state_dict.pop(prefix + KEY, _inferred_distance(state_dict, halves)))
    if distance not in (1, halves):
        raise ValueError(f"{KEY}={distance} was given; allowed: 1 and {halves}, for head_dim={head_dim}")
    for name, weight in state_dict.items() if distance != halves else ():
        if not name.startswith(prefix) or not name.endswith(("q_proj.weight", "k_proj.weight")):
            continue
        if len(weight) == rows:
            state_dict[name] = neighbours_to_halves(weight, head_dim)
        else:  # another size, or the rows of one rank
            errors.append(f"{len(weight)} rows of {name} were given; allowed: all {rows}, to reorder them for RoPE")


def _inferred_distance(state_dict: Mapping[str, Any], halves: int) -> int:
    modules = getattr(state_dict, "_metadata", None)
    return halves if modules and not any(name.endswith("positional_encoder") for name in modules) else 1
