"""Faults planted in the attention in plain PyTorch, and a table of what catches them.

python -m tests.workloads.attention_mutations --dtype bfloat16 --heads 16 --seq-len 4096 --d 64 --device cuda
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import click
import torch

from cs336_systems.attention import flash_pytorch
from perf.workloads import attention
from perf.workloads.attention_check import Bound, every_bound

FORWARD, TILED_BACKWARD = flash_pytorch.tiled_forward, flash_pytorch.tiled_backward
SCORES = flash_pytorch._masked_scores
ALL = ("forward", "backward", "forward_backward")
BACKWARD = ALL[1:]


class Mutation(NamedTuple):
    """A fault and the modes in which a case must be refused for it."""

    planted: dict[str, Callable[..., Any]]
    """Functions of `flash_pytorch` by name, and what takes their place."""

    modes: tuple[str, ...]


def scaled_forward(out_factor: float, sum_factor: float = 1.0) -> Callable[..., Any]:
    def forward(*arguments: Any) -> Any:
        out, lse = FORWARD(*arguments)
        return out * (out_factor / sum_factor), lse + math.log(sum_factor)

    return forward


def scaled_gradient(index: int) -> Callable[..., Any]:
    def backward(*arguments: Any) -> Any:
        gradients = list(TILED_BACKWARD(*arguments))
        gradients[index] = gradients[index] * 1.01
        return tuple(gradients)

    return backward


def noisy_forward(*arguments: Any) -> Any:
    """Every element is 3 % off, up or down: what sums of five bits would be."""
    out, lse = FORWARD(*arguments)
    generator = torch.Generator(out.device).manual_seed(1)
    noise = torch.randn(out.shape, generator=generator, device=out.device)
    return (out * (1 + 0.03 * noise)).to(out.dtype), lse


def base_2_forward(*arguments: Any) -> Any:
    out, lse = FORWARD(*arguments)
    return out, lse / math.log(2)


def short_forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    return FORWARD(q, k[..., :-1, :], v[..., :-1, :], *rest)


def short_backward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    dq, *others = TILED_BACKWARD(q, k[..., :-1, :], v[..., :-1, :], *rest)
    return dq, *(torch.nn.functional.pad(one, (0, 0, 0, 1)) for one in others)


def scores_without_a_tile(furthest: int, q: Any, k: Any, offset: int, *rest: Any) -> Any:
    """The queries of the last tile, `furthest` from the first key, do not see the first tile of keys."""
    scores = SCORES(q, k, offset, *rest)
    return torch.full_like(scores, -math.inf) if offset == furthest else scores


def shifted_scores(q: Any, k: Any, offset: int, *rest: Any) -> Any:
    """Every query sees the key after its own."""
    return SCORES(q, k, offset + 1, *rest)


def no_delta(out: Any, grad_out: Any, dtype: Any) -> Any:
    return torch.zeros(out.shape[:-1], dtype=dtype, device=out.device)


MUTATIONS = {
    "row sum x 1.02": Mutation({"tiled_forward": scaled_forward(1.0, 1.02)}, ALL),
    "out x 1.01": Mutation({"tiled_forward": scaled_forward(1.01)}, ALL),
    "dq x 1.01": Mutation({"tiled_backward": scaled_gradient(0)}, BACKWARD),
    "dk x 1.01": Mutation({"tiled_backward": scaled_gradient(1)}, BACKWARD),
    "dv x 1.01": Mutation({"tiled_backward": scaled_gradient(2)}, BACKWARD),
    "one tile left out": Mutation({"_masked_scores": scores_without_a_tile}, ALL),
    "diagonal off by one": Mutation({"_masked_scores": shifted_scores}, ALL),
    "lse in base 2": Mutation({"tiled_forward": base_2_forward}, BACKWARD),
    "last key unseen": Mutation({"tiled_forward": short_forward, "tiled_backward": short_backward}, ALL),
    "3 % of noise in out": Mutation({"tiled_forward": noisy_forward}, ALL),
    "delta forgotten": Mutation({"_delta": no_delta}, BACKWARD),
}


@contextlib.contextmanager
def planted(name: str, seq_len: int) -> Iterator[None]:
    """The fault of this name is in `flash_pytorch` meanwhile, which has three tiles of queries or more."""
    tile = min(flash_pytorch.Q_TILE_SIZE, seq_len // 3)
    furthest = (seq_len - 1) // tile * tile
    functions = {
        replaced: functools.partial(function, furthest) if function is scores_without_a_tile else function
        for replaced, function in MUTATIONS[name].planted.items()
    }
    with mock.patch.multiple(flash_pytorch, Q_TILE_SIZE=tile, K_TILE_SIZE=tile, **functions):
        yield


def params(dtype: str, mode: str, *, heads: int = 1, seq_len: int = 96, d: int = 16) -> dict[str, Any]:
    """Return the parameters of a causal case of the mutated implementation."""
    shape = {"tokens": seq_len, "d_model": heads * d, "seq_len": seq_len, "d": d, "is_causal": True}
    return shape | {"dtype": dtype, "mode": mode, "impl": "pytorch"}


def broken(name: str, case: dict[str, Any], device: str) -> list[Bound]:
    """Return the bounds that the fault violates, the furthest first."""
    with planted(name, case["seq_len"]), every_bound() as bounds:
        attention.build(case, device).check()
    return sorted((bound for bound in bounds if not bound.share <= 1), key=lambda bound: -bound.share)


@click.command()
@click.option("--dtype", "dtypes", multiple=True, default=("float32", "float16", "bfloat16"))
@click.option("--heads", default=1)
@click.option("--seq-len", default=96)
@click.option("--d", default=16)
@click.option("--device", default="cpu")
def main(dtypes: tuple[str, ...], heads: int, seq_len: int, d: int, device: str) -> None:
    """Print mutation, mode, what caught it, and how many times its bound was found."""
    print(f"| mutation | mode | {' | '.join(dtypes)} |\n|---|---|{'---|' * len(dtypes)}")
    for name, mutation in MUTATIONS.items():
        for mode in mutation.modes:
            cells = []
            for dtype in dtypes:
                found = broken(name, params(dtype, mode, heads=heads, seq_len=seq_len, d=d), device)
                by_name: dict[str, Bound] = {}
                for bound in found:
                    by_name.setdefault(bound.what if bound.keys == "random" else f"{bound.what} (last keys)", bound)
                violated = [f"{name} of {bound.tensor} {bound.share:.3g}x" for name, bound in by_name.items()]
                cells.append(", ".join(violated) or "NOT CAUGHT")
            print(f"| {name} | {mode} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
