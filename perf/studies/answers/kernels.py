"""Of the answers' tables those that the course asks a profiler for."""

import re
from collections.abc import Callable

from perf.studies.answers.rows import BATCH, CONTEXTS, SIZES, Documents, Row, by, markdown, share, three
from perf.studies.kernels.results import total
from perf.workloads import measured

NAMES = {
    r"masked_fill_kernel": "`masked_fill`, the causal mask",
    r"AUnaryFunctor": "product of the scores and their scale",
    r"softmax_warp_forward": "softmax",
    r"Memcpy DtoD": "copy of the scores, by `masked_fill`",
    r"CatArrayBatchedCopy": "`cat` of RoPE's halves",
    r"direct_copy_kernel": "copies: v, and the heads side by side",
    r"silu_kernel": "SiLU",
    r"layer_norm_kernel": "RMSNorm",
    r"CUDAFunctor_add": "additions: RoPE, residual stream",
    r"^void at::native::elementwise_kernel<.*MulFunctor": "products of RoPE",
    r"^void at::native::vectorized_elementwise_kernel<.*BinaryFunctor.*MulFunctor": "product in SwiGLU",
}
"""What kernels of eager PyTorch do in this model's forward, by a pattern of their names."""


def forward_time(found: Documents) -> str:
    """Device and wall time of a forward without a graph."""
    rows = by(found["kernels"]["rows"], "size", "context")
    shown = []
    for size in SIZES:
        cells = {"size": size}
        for context in CONTEXTS:
            row = rows[size, context]
            cells[f"context {context}"] = " / ".join(
                three(seconds) for seconds in (row["forward_only"]["busy_s"], row["wall_s"]["forward only"])
            )
        cells["kernels at 512"] = str(rows[size, 512]["forward_only"]["launches"])
        shown.append(cells)
    return markdown(shown)


def top_kernels(found: Documents) -> str:
    """The kernel with the most time in a forward and in a step."""
    rows = by(found["kernels"]["rows"], "size", "context")
    shown = []
    for size in SIZES:
        cells = {"size": size}
        for part, name in {"forward_only": "forward", "step": "step"}.items():
            row = rows[size, 512][part]
            kernel, _, count, seconds = row["kernels_s"][0]
            cells[f"{name}: most time"] = f"`{shape(kernel)}`"
            cells[f"{name}: calls"] = calls(count, measured("configs", "MODEL_CONFIGS")[size].num_layers)
            cells[f"{name}: share"] = share(seconds / total(row))
        shown.append(cells)
    return markdown(shown)


def calls(count: int, layers: int) -> str:
    """So many of each layer, and the rest."""
    each, rest = divmod(count, layers)
    return f"{count} = {each} · {layers}" + (f" + {rest}" if rest else "")


def shape(kernel: str) -> str:
    """The part of a matmul kernel's name that tells it from others: its transposes and its tile."""
    if match := re.search(r"xmma_gemm_\w+?_([tn]{2})_n_tilesize(\d+x\d+)", kernel):
        return f"sm80_xmma_gemm f32 {match[1]} {match[2]}"
    if match := re.search(r"cutlass_80_simt_sgemm_(\d+x\d+)_\w+?_([tn]{2})_", kernel):
        return f"cutlass_80_simt_sgemm {match[2]} {match[1]}"
    return kernel[:40]


def other_kernels(found: Documents) -> str:
    """The most of a forward that are no matmuls, in a small and in a large model."""
    rows = by(found["kernels"]["rows"], "size", "context")
    small, large = (rows[size, 512]["forward_only"] for size in ("small", "2.7B"))
    beside = {one[0]: one for one in large["kernels_s"]}
    shown: list[Row] = []
    for name, kind, count, seconds in small["kernels_s"]:
        if kind == "matmul" or len(shown) == 10:
            continue
        *_, again, others = beside[name]
        shown.append(
            {
                "kernel": named(name),
                "small: calls": count,
                "small: ms": three(seconds),
                "small: share": share(seconds / total(small)),
                "2.7B: calls": again,
                "2.7B: ms": three(others),
                "2.7B: share": share(others / total(large)),
            }
        )
    return markdown(shown)


def named(kernel: str) -> str:
    """In the model's words."""
    return next((said for pattern, said in NAMES.items() if re.search(pattern, kernel)), f"`{kernel[:40]}`")


def kinds(found: Documents) -> str:
    """Shares of device time by kind, of a forward and of a step."""
    rows = by(found["kernels"]["rows"], "size", "context")
    names = ("matmul", "softmax", "elementwise", "optimizer", "other")
    shown: list[Row] = []
    for size in ("small", "large", "2.7B"):
        for context in (128, 512, 1024):
            row = rows[size, context]
            cells = {"size, context": f"{size}, {context}"}
            for name in names:
                parts = (row[part]["kinds_s"][name] / total(row[part]) for part in ("forward_only", "step"))
                cells[f"{name}: forward → step"] = " → ".join(share(part) for part in parts)
            shown.append(cells)
    return markdown(shown)


def softmax(found: Documents) -> str:
    """Softmax beside the matmuls of attention: time, FLOPs, and the rate that limits each."""
    rows = by(found["kernels"]["rows"], "size", "context")
    shown: list[Row] = []
    for size, context in [(size, 512) for size in SIZES] + [("small", 128), ("2.7B", 1024)]:
        parts = rows[size, context]["attention_parts"]
        config = measured("configs", "MODEL_CONFIGS")[size]
        scores = config.num_layers * BATCH * config.num_heads * context**2
        times = parts["softmax_s"] / parts["matmul_s"]
        shown.append(
            {
                "size, context": f"{size}, {context}",
                "softmax, ms": three(parts["softmax_s"]),
                "matmuls, ms": three(parts["matmul_s"]),
                "scale and mask, ms": three(parts["scale_and_mask_s"]),
                "time": f"{times:.2f} : 1",
                "FLOPs": f"1 : {parts['matmul_flops'] / parts['softmax_flops']:.0f}",
                "time per FLOP": f"{times * parts['matmul_flops'] / parts['softmax_flops']:.0f} : 1",
                "softmax, TB/s": f"{8 * scores / parts['softmax_s'] / 1e12:.2f}",
                "matmuls, TFLOP/s": f"{parts['matmul_flops'] / parts['matmul_s'] / 1e12:.1f}",
            }
        )
    return markdown(shown)


KERNEL_TABLES: dict[str, Callable[[Documents], str]] = {
    "forward-time": forward_time,
    "top-kernels": top_kernels,
    "other-kernels": other_kernels,
    "kinds": kinds,
    "softmax": softmax,
}
