"""nsys_profile: what the course asks a profiler for."""

import functools
import re
from collections.abc import Callable, Iterable

from perf.studies.kernels.results import total
from perf.studies.lm import SIZES_2025
from perf.studies.on_file import OnFile
from perf.writeup.answers.rows import BATCH, CONTEXTS, Answer, Documents, Row, config_of, settings
from perf.writeup.formats import share, three
from perf.writeup.markdown import Markup, code

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
"""Operations of this model's forward by a pattern of the names of their eager PyTorch kernels."""


def forward_time(documents: Documents) -> list[Row]:
    """Device and wall time of a forward without a graph."""
    rows = settings(documents, "kernels")
    shown: list[Row] = []
    for size in SIZES_2025:
        cells: Row = {"size": size}
        for context in CONTEXTS:
            row = rows[size, context]
            cells[f"context {context}"] = " / ".join(
                three(seconds) for seconds in (row["forward_only"]["busy_s"], row["wall_s"]["forward only"])
            )
        cells["kernels at 512"] = str(rows[size, 512]["forward_only"]["launches"])
        shown.append(cells)
    return shown


def top_kernels(documents: Documents) -> list[Row]:
    """The kernel with the most time in a forward and in a step."""
    rows = settings(documents, "kernels")
    shown: list[Row] = []
    for size in SIZES_2025:
        cells: Row = {"size": size}
        for part, name in {"forward_only": "forward", "step": "step"}.items():
            row = rows[size, 512][part]
            kernel, _, count, seconds = row["kernels_s"][0]
            cells[f"{name}: most time"] = code(shape(kernel))
            cells[f"{name}: calls"] = calls(count, config_of(size).num_layers)
            cells[f"{name}: share"] = share(seconds / total(row))
        shown.append(cells)
    return shown


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


def other_kernels(documents: Documents) -> list[Row]:
    """The most of a forward that are no matmuls, in a small and in a large model."""
    rows = settings(documents, "kernels")
    small, large = (rows[size, 512]["forward_only"] for size in ("small", "2.7B"))
    beside = OnFile({one[0]: one for one in large["kernels_s"]})
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
    return shown


def named(kernel: str) -> str:
    """The operation of the model that launches it; the beginning of its own name where that is not known."""
    return Markup(next((words for pattern, words in NAMES.items() if re.search(pattern, kernel)), code(kernel[:40])))


def kinds(documents: Documents) -> list[Row]:
    """Shares of device time by kind, of a forward and of a step."""
    rows = settings(documents, "kernels")
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
    return shown


def softmax(documents: Documents) -> list[Row]:
    """Softmax beside the matmuls of attention: time, FLOPs, and the rate that limits each."""
    rows = settings(documents, "kernels")
    shown: list[Row] = []
    for size, context in [(size, 512) for size in SIZES_2025] + [("small", 128), ("2.7B", 1024)]:
        parts = rows[size, context]["attention_parts"]
        config = config_of(size)
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
    return shown


class Kernels(Answer):
    """Figures of `study kernels`: profiles of a forward and of a step by size and context."""

    @functools.cached_property
    def rows(self) -> dict[tuple[str, int], Row]:
        """The profiles."""
        return settings(self.documents, "kernels")

    def wall_s(self, size: str, context: int) -> float:
        """Wall time of a forward without a graph."""
        return self.rows[size, context]["wall_s"]["forward only"]

    def busy_s(self, size: str, context: int) -> float:
        """The time of that forward in which some kernel runs."""
        return self.rows[size, context]["forward_only"]["busy_s"]

    def waits_s(self) -> list[float]:
        """Wall time beyond busy time of every forward."""
        return [self.wall_s(*key) - self.busy_s(*key) for key in self.rows]

    def waiting(self, size: str, context: int) -> float:
        """The share of a forward's wall time in which no kernel runs."""
        return 1 - self.busy_s(size, context) / self.wall_s(size, context)

    def top_shares(self) -> list[float]:
        """The share of the step's device time that its top kernel takes, every size at 512."""
        return [row["kernels_s"][0][3] / total(row) for row in (self.rows[size, 512]["step"] for size in SIZES_2025)]

    def same_top(self) -> list[str]:
        """The sizes with the same top kernel in the forward and in the step."""
        parts = ("forward_only", "step")
        tops = {size: {self.rows[size, 512][part]["kernels_s"][0][0] for part in parts} for size in SIZES_2025}
        return [size for size, names in tops.items() if len(names) == 1]

    def matmul_names(self) -> list[str]:
        """The matmul kernels of every size at 512, without those that add the pieces of a split sum."""
        parts = [self.rows[size, 512][part] for size in SIZES_2025 for part in ("forward_only", "step")]
        return [
            name for row in parts for name, kind, *_ in row["kernels_s"] if kind == "matmul" and "splitK" not in name
        ]

    def others(self, size: str) -> float:
        """The share of a forward's device time that kernels other than matmuls take."""
        return 1 - matmul_share(self.rows[size, 512]["forward_only"])

    def changes(self, contexts: Iterable[int] = CONTEXTS) -> list[float]:
        """Differences of the matmuls' share of a step and of its forward."""
        rows = [row for (_, context), row in self.rows.items() if context in contexts]
        return [matmul_share(row["step"]) - matmul_share(row["forward_only"]) for row in rows]

    def optimizer_shares(self, context: int) -> list[float]:
        """The optimizer's share of the step's device time, every size."""
        steps = [row["step"] for (_, one), row in self.rows.items() if one == context]
        return [step["kinds_s"]["optimizer"] / total(step) for step in steps]

    def _parts(self, contexts: Iterable[int] = CONTEXTS) -> list[Row]:
        return [row["attention_parts"] for (_, context), row in self.rows.items() if context in contexts]

    def softmax_over_matmuls(self) -> list[float]:
        """Time of softmax over that of attention's two matmuls."""
        return [part["softmax_s"] / part["matmul_s"] for part in self._parts()]

    def flop_ratios(self) -> list[float]:
        """FLOPs of the matmuls over those of softmax, each value once, the smallest first."""
        return sorted({part["matmul_flops"] / part["softmax_flops"] for part in self._parts()})

    def times_per_flop(self) -> list[float]:
        """Time for a FLOP of softmax over that for a FLOP of the matmuls."""
        return [
            part["softmax_s"] / part["matmul_s"] * part["matmul_flops"] / part["softmax_flops"]
            for part in self._parts()
        ]

    def softmax_rates(self, *contexts: int) -> list[float]:
        """Bytes a second: softmax reads and writes a score of 4 bytes, and has 5 FLOPs for it."""
        return [8 * part["softmax_flops"] / 5 / part["softmax_s"] for part in self._parts(contexts)]

    def matmul_rates(self, *contexts: int) -> list[float]:
        """FLOP/s of attention's matmuls."""
        return [part["matmul_flops"] / part["matmul_s"] for part in self._parts(contexts)]

    def scale_and_mask_over_matmuls(self) -> list[float]:
        """Time of scale and mask over that of the matmuls."""
        return [part["scale_and_mask_s"] / part["matmul_s"] for part in self._parts()]


def matmul_share(part: Row) -> float:
    """The matmuls' share of the device time of a forward or of a step."""
    return part["kinds_s"]["matmul"] / total(part)


TABLES: dict[str, Callable[[Documents], list[Row]]] = {
    "forward-time": forward_time,
    "top-kernels": top_kernels,
    "other-kernels": other_kernels,
    "kinds": kinds,
    "softmax": softmax,
}
