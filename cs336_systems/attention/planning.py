"""Plans: which kernels a call gets and how they are launched, made once for all calls alike.

`hopper` says which Gluon kernel takes a call (`gluon_plans`); the Triton kernels (`triton_plans`) take the others.
"""

import torch
import triton
from torch import Tensor

from cs336_systems.attention import hopper, tiles, triton_plans
from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.launch import Backward, Forward, PlanCache, kinds_of, layout_of, like, new_lse
from cs336_systems.attention.request import Request
from cs336_systems.attention.triton_kernels.forward import flash_fwd_kernel
from cs336_systems.launching import require_launchable
from cs336_systems.memory import holds_its_values, materialized

# False under Triton's interpreter, which runs on the CPU and multiplies exactly.
IS_COMPILED = isinstance(flash_fwd_kernel, triton.runtime.JITFunction)

MAX_ROW_STRIDE = 2**24
"""From this row stride on a tensor is copied: offsets within a tile of up to 128 rows are 32-bit integers."""


class Plan:
    """Launches of calls that are alike: a forward, and a backward for each layout of the saved tensors."""

    def __init__(self, request: Request, q: Tensor, k: Tensor, v: Tensor):
        check_inputs(q, k, v, "triton")  # kernels trust these sizes: a mismatch would read another tensor's memory
        self.request = request
        self.forward = choose_forward(request, q, k, v)
        self.backwards: PlanCache[Backward] = PlanCache()

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk, dv, shaped like q, k, v.

        Saved tensors may come back in another layout: torch only requires hooks to keep size, dtype and device.
        """
        lse = lse.contiguous()  # which kernels take it for
        deterministic = self.request.deterministic or torch.are_deterministic_algorithms_enabled()
        layout = grad_out.is_neg(), layout_of(q, k, v, out, lse, grad_out)
        key = deterministic, None if seed is None else _seed_key(seed), layout
        run = self.backwards.get(key) or self.backwards.keep(
            key, choose_backward(self.request._replace(deterministic=deterministic), q, k, v, out, grad_out)
        )
        return run(q, k, v, out, lse, grad_out, seed)


plans: PlanCache[Plan] = PlanCache()


def plan_for(request: Request, q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> Plan:
    """Return the plan of such a call, made if there is none."""
    try:
        key = request, None if seed is None else _seed_key(seed), kinds_of(q, k, v), layout_of(q, k, v)
    except (RuntimeError, NotImplementedError):  # of a tensor without strides or memory
        check_inputs(q, k, v, "triton")
        raise
    return plans.get(key) or plans.keep(key, Plan(request, q, k, v))


def choose_forward(request: Request, q: Tensor, k: Tensor, v: Tensor) -> Forward:
    """Choose the kernels of a forward for checked inputs; raise ValueError where none runs."""
    require_launchable(flash_fwd_kernel, q, "q")
    if q.numel() == 0:
        return _empty_forward
    if not all(map(holds_its_values, (q, k, v))):
        return _forward_of_copies(request, q, k, v)
    num_keys = _visible_keys(request, q, k)
    request = _resolved(request, q, num_keys)
    q4, k4, v4 = as_4d(q), _first_rows(as_4d(k), num_keys), _first_rows(as_4d(v), num_keys)
    if choice := hopper.hopper_forward(request, q4, k4, v4):
        from cs336_systems.attention import gluon_plans

        forward = gluon_plans.gluon_forward(request, q4, k4, v4, choice)
    elif chunk := tiles.split_keys(request, q4, k4):
        forward = triton_plans.split_forward(request, q4, k4, v4, chunk)
    elif in_pieces := hopper.hopper_float32_forward(request, q4, k4):
        from cs336_systems.attention import gluon_plans

        forward = gluon_plans.pieces_forward(request, q4, k4, v4, in_pieces)
    else:
        forward = triton_plans.plain_forward(request, q4, k4, v4)
    if q is q4 and k is k4 and v is v4:
        return forward

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = forward(as_4d(q), _first_rows(as_4d(k), num_keys), _first_rows(as_4d(v), num_keys), seed)
        return out.reshape(q.shape), lse.reshape(q.shape[:-1])

    return run


def choose_backward(request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor) -> Backward:
    """Choose the kernels of a backward for the layouts of saved tensors and of the gradient of out."""
    if q.numel() == 0:
        return _empty_backward
    given = q, k, v, out, do
    if not all(map(holds_its_values, given)):
        return _backward_of_copies(request, *given)
    num_keys = _visible_keys(request, q, k)
    request = _resolved(request, q, num_keys)
    q4, k4, v4, out4, do4 = map(as_4d, given)
    k4, v4 = _first_rows(k4, num_keys), _first_rows(v4, num_keys)
    if choice := hopper.hopper_backward(request, q4, k4, v4):
        from cs336_systems.attention import gluon_plans

        backward = gluon_plans.gluon_backward(request, q4, k4, v4, out4, do4, choice)
    elif in_pieces := hopper.hopper_float32_backward(request, q4, k4):
        from cs336_systems.attention import gluon_plans

        backward = gluon_plans.pieces_backward(request, q4, k4, v4, out4, do4, in_pieces)
    else:
        backward = triton_plans.plain_backward(request, q4, k4, v4, out4, do4)
    if all(x is x4 for x, x4 in zip(given, (q4, k4, v4, out4, do4), strict=True)):
        return backward

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        k4, v4 = as_4d(k), as_4d(v)
        seen = _first_rows(k4, num_keys), _first_rows(v4, num_keys)
        dq, dk, dv = backward(as_4d(q), *seen, as_4d(out), lse, as_4d(do), seed)
        return dq.reshape(q.shape), _all_rows(dk, k4).reshape(k.shape), _all_rows(dv, v4).reshape(v.shape)

    return run


def _forward_of_copies(request: Request, *given: Tensor) -> Forward:
    forward = choose_forward(request, *map(materialized, given))

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        return forward(materialized(q), materialized(k), materialized(v), seed)

    return run


def _backward_of_copies(request: Request, *given: Tensor) -> Backward:
    backward = choose_backward(request, *map(materialized, given))

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, do = map(materialized, (q, k, v, out, do))
        return backward(q, k, v, out, lse, do, seed)

    return run


def as_4d(x: Tensor) -> Tensor:
    """Return x as (batch, heads, seq_len, head_dim) with contiguous head vectors: a view wherever there is one."""
    if x.ndim != 4:
        x = x.flatten(0, -4) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # A copy costs one pass; reading scattered elements costs as much again for every tile that visits them.
    # The gradient of a sum is such a tensor, one number expanded with stride 0.
    return x if x.stride(-1) == 1 and x.stride(-2) < MAX_ROW_STRIDE else x.contiguous()


def new_like(x: Tensor) -> Tensor:
    """Allocate what plans return for x: an output for q, a gradient for q, k and v."""
    return like(as_4d(x)).reshape(x.shape)


def _resolved(request: Request, q: Tensor, num_keys: int) -> Request:
    """Return the request that kernels get: scale a number, products as tl.dot runs here.

    With one query or one key no causal mask is needed, since the queries see one key. Without it, Triton compiles no
    kernel that masks and takes a length of 1 for a constant: ptxas crashes on its loop over keys (triton 3.6 to 3.9,
    16-bit inputs).
    """
    return request._replace(
        is_causal=request.is_causal and num_keys > 1,
        scale=q.shape[-1] ** -0.5 if request.scale is None else request.scale,
        products=request.products if IS_COMPILED else "ieee",
    )


def _visible_keys(request: Request, q: Tensor, k: Tensor) -> int:
    """Return how many keys any query sees."""
    return min(q.shape[-2], k.shape[-2]) if request.is_causal else k.shape[-2]


def _first_rows(x: Tensor, rows: int) -> Tensor:
    return x if x.shape[-2] == rows else x[..., :rows, :]


def _all_rows(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x, zero for rows after those of `grad`."""
    if grad.shape == x.shape:
        return grad
    full = like(x).zero_()
    _first_rows(full, grad.shape[-2]).copy_(grad)
    return full


def _seed_key(seed: Tensor) -> int:
    """Return what Triton compiles for."""
    return seed.data_ptr() % 16


def _empty_forward(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    return new_like(q), new_lse(q)


def _empty_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return zeros: there may be keys where there are no queries."""
    return new_like(q), new_like(k).zero_(), new_like(v).zero_()
