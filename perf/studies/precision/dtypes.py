"""The course's `benchmarking_mixed_precision`: which dtypes autocast makes, and why layer norm is special."""

import math
from collections import OrderedDict
from typing import Any

from perf.studies.rows import Row

AUTOCAST = {"fp16": "float16", "bf16": "bfloat16"}
NAMES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
TENSORS = ("parameters", "fc1", "layer norm", "logits", "cross entropy", "gradients", "mean()")

SOURCE = "docs.pytorch.org/docs/stable/amp.html, CUDA Ops that can autocast to float32"


def known_on_cuda(autocast: str) -> Row:
    """Return the dtypes of the toy model under CUDA's autocast, by torch's documentation (`SOURCE`).

    linear is on its list of half-precision operations; layer_norm and cross_entropy are on that of float32; mean is on
    neither and keeps its input's dtype.
    """
    dtypes = dict.fromkeys(("parameters", "layer norm", "cross entropy", "gradients"), "fp32")
    dtypes |= dict.fromkeys(("fc1", "logits", "mean()"), autocast)
    return {"part": "dtypes", "autocast": autocast, "on": "cuda, as documented"} | {
        name: dtypes[name] for name in TENSORS
    }


def rows(device: str) -> list[Row]:
    """Return dtypes of the toy model's tensors on this device, and on CUDA as documented."""
    return [row for autocast in AUTOCAST for row in (_observed(autocast, device), known_on_cuda(autocast))]


def _observed(autocast: str, device: str) -> Row:
    """Return the dtypes of the course's ToyModel in a forward and backward."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    layers = OrderedDict(
        fc1=nn.Linear(20, 10, bias=False), relu=nn.ReLU(), ln=nn.LayerNorm(10), fc2=nn.Linear(10, 5, bias=False)
    )
    model = nn.Sequential(layers).to(device)
    seen: dict[str, torch.dtype] = {}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _layer, _args, out, name=name: seen.update({name: out.dtype}))
    with torch.autocast(device, dtype=getattr(torch, AUTOCAST[autocast])):
        logits = model(torch.ones(4, 20, device=device))
        parameters = {parameter.dtype for parameter in model.parameters()}
        loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=device))
        mean = logits.mean()
    loss.backward()
    gradients = {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None}
    dtypes = (parameters, seen["fc1"], seen["ln"], seen["fc2"], loss.dtype, gradients, mean.dtype)
    return {"part": "dtypes", "autocast": autocast, "on": device} | dict(zip(TENSORS, map(_name, dtypes), strict=True))


def _name(dtype: Any) -> str:
    return "/".join(sorted(NAMES[str(each)] for each in (dtype if isinstance(dtype, set) else {dtype})))


def variances() -> list[Row]:
    """Return the variance in a layer norm, the mean square of equal magnitudes, rounded to each dtype."""
    import torch

    rows = []
    for name in ("fp32", "fp16", "bf16"):
        dtype = torch.float32 if name == "fp32" else getattr(torch, AUTOCAST[name])
        row: Row = {"part": "variances", "dtype": name}
        for magnitude in (300.0, 1e-4):
            x = torch.tensor([magnitude, -magnitude], dtype=dtype)
            row[f"variance of +-{magnitude:g}"] = float((x * x).mean())
        rows.append(row | {"largest": torch.finfo(dtype).max, "bits": 1 - round(math.log2(torch.finfo(dtype).eps))})
    return rows


def table(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    return [{name: _shown(value) for name, value in row.items() if name != "part"} for row in rows]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def misspelt() -> str:
    """Return torch's message for the `torch.autocast(device=...)` of the course of 2025."""
    import torch

    try:
        torch.autocast(device="cuda")  # type: ignore[call-arg]
    except TypeError as error:
        return str(error)
    return "accepted"


def answer(rows: list[Row], variances: list[Row]) -> list[str]:
    """Return paragraphs on the dtypes, on layer norm under fp16 and bf16, and on the handout's spelling."""
    observed, known = ([row for row in rows if (row["on"] in ("cuda", "cpu")) is here] for here in (True, False))
    by_dtype = {row["dtype"]: row for row in variances}
    large, small = (name for name in variances[0] if name.startswith("variance"))
    off = abs(by_dtype["bf16"][large] / by_dtype["fp32"][large] - 1)
    return [
        _differences(observed, known),
        "A loss made with mean() of half-precision numbers stays in half precision, on CUDA too: mean is on neither of "
        "autocast's lists. Answers that report an fp16 loss come from there; cross_entropy is on the list of float32.",
        "Layer norm is sensitive in its mean and variance. Under fp16 the squares of numbers from 256 on exceed "
        f"{by_dtype['fp16']['largest']:g} and those of numbers below 1.7e-4 vanish: the {large} is "
        f"{by_dtype['fp16'][large]:g} and the {small} is {by_dtype['fp16'][small]:g}. So autocast keeps it in fp32.",
        f"bf16 has the exponents of fp32, so neither happens (here {by_dtype['bf16'][large]:g} and "
        f"{by_dtype['bf16'][small]:.3g}), and range no longer asks for fp32; but with {by_dtype['bf16']['bits']} "
        f"significant bits one rounding takes the variance {off:.2%} off, and long sums stall. CUDA's autocast keeps "
        "layer norm in fp32 for both.",
        f"torch.autocast(device=...), as the course of 2025 writes it, does not exist ({misspelt()}): the argument is "
        "device_type.",
    ]


def _differences(observed: list[Row], known: list[Row]) -> str:
    fp16, documented = observed[0], known[0]
    differing = [
        f"{name} ({here[name]} here, {there[name]} there, under {here['autocast']})"
        for here, there in zip(observed, known, strict=True)
        for name in TENSORS
        if here[name] != there[name]
    ]
    answer = ", ".join(f"{name} {documented[name]}" for name in TENSORS[:-1])
    if fp16["on"] == "cuda":
        verdict = f"but for {', '.join(differing)}" if differing else "in everything"
        return f"Observed on CUDA, as documented ({SOURCE}) {verdict}. Documented for fp16: {answer}."
    return (
        "This looked at a CPU, whose autocast has other lists of operations. The course's answer is CUDA's: under fp16 "
        f"{answer} (source: {SOURCE}). Different here: {', '.join(differing) or 'nothing'}."
    )
