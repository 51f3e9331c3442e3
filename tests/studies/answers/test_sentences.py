"""The numbers in the sentences of the answers to the course are those of the rows."""

import statistics

import pytest

from cs336_systems.accounting.compute import block_parameters, forward_flops, matmul_weights, parameters
from cs336_systems.accounting.kept import course_block_kept_bytes
from cs336_systems.accounting.peak import peak_step_bytes
from cs336_systems.configs import MODEL_CONFIGS
from perf.studies.answers import page
from perf.studies.answers.memory import block_parts
from perf.studies.answers.rows import SIZES, by
from perf.studies.answers.tables import DIMS, step_s
from perf.studies.attention.memory import first_that_fails, predicted
from perf.studies.precision.results import smoothed
from perf.studies.speedups import best, bound_of, known, milliseconds, speedup_of
from perf.studies.train_step.study import tflops
from perf.units import GIB, MIB

WORDS = " ".join((page.FOLDER / "README.md").read_text().split())
FRONT, CHINESE = (" ".join(path.read_text(encoding="utf-8").split()) for path in page.FRONT)
FOUND = page.documents(page.FOLDER)
STEPS = by(FOUND["end-to-end"]["rows"], "size", "context", "precision")
PROFILES = by(FOUND["kernels"]["rows"], "size", "context")
MEMORY = by(FOUND["memory"]["rows"], "size", "context", "precision")
ATTENTION = by(FOUND["compile-attention"]["rows"], "seq_len", "d", "variant")
MODELS = by(FOUND["compile-model"]["rows"], "size", "variant")
STARTS = {row["size"]: row for row in FOUND["warm-up"]["rows"]}
TRAINING = {row["precision"]: row for row in FOUND["precision"]["rows"] if row["part"] == "training"}
BIG = MODEL_CONFIGS["2.7B"]


def mean_step(*setting):
    return statistics.mean(step_s(STEPS[setting]))


def gains():
    return [mean_step(*key, "fp32") / mean_step(*key, "bf16") for key in {key[:2] for key in STEPS}]


def phase_ratio(phase, size, context=512):
    before, after = (statistics.mean(STEPS[size, context, one][f"{phase}_s"]) for one in ("fp32", "bf16"))
    return before / after


def matmul_share(part):
    return part["kinds_s"]["matmul"] / sum(part["kinds_s"].values())


def span(values, digits, unit=""):
    """From the least to the most."""
    values = list(values)
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}{unit}"


def claims_of_steps():
    fp32 = [STEPS[size, 512, "fp32"] for size in SIZES]
    means = {phase: [statistics.mean(row[f"{phase}_s"]) for row in fp32] for phase in ("forward", "backward")}
    deviation = {
        phase: max(statistics.stdev(row[f"{phase}_s"]) / statistics.mean(row[f"{phase}_s"]) for row in fp32)
        for phase in ("forward", "backward", "optimizer")
    }
    yield f"a forward takes {means['forward'][0] * 1e3:.0f} ms (small) to {means['forward'][-1] * 1e3:.0f} ms (2.7B)"
    yield f"a backward {span((b / f for f, b in zip(*means.values(), strict=True)), 1)} times that"
    yield f"at most {max(deviation['forward'], deviation['backward']):.1%} of the mean".replace("%", " %")
    yield f"{deviation['optimizer']:.1%} for the optimizer".replace("%", " %")
    yield f"10B alone are {16 * parameters(MODEL_CONFIGS['10B']) / GIB:.0f} GiB"


def claims_of_warm_up():
    first = {}
    for size, row in STARTS.items():
        settled = statistics.median(step_s(row)[5:])
        first[size] = step_s(row)[0] / settled
        assert 0.13 < row["forward_s"][0] - statistics.median(row["forward_s"][5:]) < 0.155
        after_five = statistics.mean(row["forward_s"][5:15])
        assert all(abs(statistics.mean(row["forward_s"][n : n + 10]) / after_five - 1) < 1e-3 for n in (1, 2))
    small = STARTS["small"]["forward_s"]
    assert statistics.stdev(small[:10]) > statistics.mean(small[:10]) > 1.7 * small[1]
    yield f"step takes {first['small']:.1f} times a settled one for small and {first['2.7B']:.1f} times for 2.7B"
    cold, spread = (value(small[:10]) * 1e3 for value in (statistics.mean, statistics.stdev))
    yield f"Ours is {spread:.1f} ms for a mean of {cold:.1f} ms"
    longer = (small[0] - statistics.mean(small[1:10])) * 1e3
    yield f"our first forward is {longer:.1f} ms longer, which gives {longer / 10**0.5:.1f} ms"
    yield f"needs one that is {(5657 * 10) ** 0.5:.0f} ms longer"
    yield f"the deviation is its root, {5595.8**0.5:.1f} ms"
    yield f"of warm-up ours falls to {statistics.stdev(small[1:11]) * 1e3:.2f} ms"


def claims_of_kernels():
    waits = [row["wall_s"]["forward only"] - row["forward_only"]["busy_s"] for row in PROFILES.values()]
    yield f"reads {span((wait * 1e3 for wait in waits), 1)} ms more than the device is busy"
    wall, busy = (
        {key: row[name][one] for key, row in PROFILES.items()}
        for name, one in (("wall_s", "forward only"), ("forward_only", "busy_s"))
    )
    for key, words in {("2.7B", 1024): "{:.1%} of 2.7B at 1024", ("small", 128): "{:.0%} of small at 128"}.items():
        yield words.format(1 - busy[key] / wall[key]).replace("%", " %")
    forward = statistics.mean(STEPS["small", 512, "fp32"]["forward_s"])
    yield f"small at 512 takes {forward * 1e3:.2f} ms instead of {wall['small', 512] * 1e3:.1f}"
    at_512 = [PROFILES[size, 512] for size in SIZES]
    top = [row["step"]["kernels_s"][0][3] / sum(row["step"]["kinds_s"].values()) * 100 for row in at_512]
    yield f"share falls to {span(top, 0)} %"
    tops = [[row[part]["kernels_s"][0][0] for part in ("forward_only", "step")] for row in at_512]
    assert [a == b for a, b in tops] == [False, True, False, True, False]  # medium and xl
    for size, row in zip(SIZES, at_512, strict=True):
        for part in ("forward_only", "step"):
            names = [name for name, kind, *_ in row[part]["kernels_s"] if kind == "matmul" and "splitK" not in name]
            assert all("simt" in name or "ffma" in name for name in names), size
    rest = {row["size"]: (1 - matmul_share(row["forward_only"])) * 100 for row in at_512}
    yield f"take {rest['small']:.0f} % of small's forward and {rest['2.7B']:.0f} % of 2.7B's"
    change = {
        key: 100 * (matmul_share(row["step"]) - matmul_share(row["forward_only"])) for key, row in PROFILES.items()
    }
    yield f"falls by up to {-min(change.values()):.0f} points"
    late = max(abs(value) for (_, context), value in change.items() if context >= 512)
    yield f"by no more than {late:.1f} points at 512 and 1024"
    steps = {key: row["step"]["kinds_s"] for key, row in PROFILES.items()}
    adamw = [100 * one["optimizer"] / sum(one.values()) for (_, context), one in steps.items() if context == 128]
    yield f"AdamW takes {span(adamw, 0)} % of the step"


def claims_of_softmax():
    parts = {key: row["attention_parts"] for key, row in PROFILES.items()}
    times = {key: part["softmax_s"] / part["matmul_s"] for key, part in parts.items()}
    flops = {key: part["matmul_flops"] / part["softmax_flops"] for key, part in parts.items()}
    yield f"takes {span(times.values(), 2)} of their time"
    yield f"{span((times[key] * flops[key] for key in parts), 0)} times the time for a FLOP"
    long = {key: part for key, part in parts.items() if key[1] >= 512}
    bandwidth = [8 * part["softmax_flops"] / 5 / part["softmax_s"] / 1e12 for part in long.values()]
    yield f"at {span(bandwidth, 1)} TB/s from context 512 on"
    rates = [part["matmul_flops"] / part["matmul_s"] / 1e12 for part in long.values()]
    yield f"matmuls run at {span(rates, 0)} TFLOP/s"
    yield f"take {span((part['scale_and_mask_s'] / part['matmul_s'] for part in parts.values()), 1)} times as long"


def claims_of_precision():
    for phase, words in (
        ("forward", "the forward {:.2f} (small) to {:.2f} times (2.7B)"),
        ("backward", "{:.2f} to {:.2f}"),
    ):
        yield words.format(phase_ratio(phase, "small"), phase_ratio(phase, "2.7B"))
    rate = forward_flops(BIG, 4, 512) / statistics.mean(STEPS["2.7B", 512, "bf16"]["forward_s"]) / 1e12
    yield f"{rate:.0f} TFLOP/s are {rate / 989 * 100:.0f} % of the peak"
    over = {size: mean_step(size, 1024, "fp32") / mean_step(size, 1024, "bf16") for size in SIZES}
    under = {size: mean_step(size, 512, "fp32") / mean_step(size, 512, "bf16") for size in SIZES}
    assert [size for size in SIZES if over[size] > 1.05 * under[size]] == ["small"]
    short = [statistics.mean(STEPS["small", context, "bf16"]["forward_s"]) * 1e3 for context in (128, 256, 512)]
    yield f"of small takes {span(short, 1)} ms at 128, 256 and 512"
    small = MODEL_CONFIGS["small"]
    yield f"while the FLOPs grow {forward_flops(small, 4, 512) / forward_flops(small, 4, 128):.1f} times"
    slow = [seconds for seconds in STEPS["small", 128, "bf16"]["backward_s"] if seconds > 0.015]
    assert len(slow) == 7
    assert 0.017 < min(slow) < max(slow) < 0.020
    rest = set(STEPS["small", 128, "bf16"]["backward_s"]) - set(slow)
    assert 0.011 < min(rest) < max(rest) < 0.012
    events = [MEMORY["2.7B", 512, precision]["forward"]["phases"][0]["events"] for precision in ("bf16", "fp32")]
    yield "makes {} allocations and releases in bf16 and {} in fp32".format(*events)
    yield f"Measured: {span(gains(), 2)} times the speed of a step"
    again = PROFILES["small", 128]["next_s"] * 1e3
    exact, mixed = (mean_step("small", 128, precision) * 1e3 for precision in ("fp32", "bf16"))
    yield f"takes {mixed:.1f} ms instead of {exact:.1f} ms ({again:.1f} in a second measurement)"
    medium = PROFILES["medium", 128]
    once = mean_step("medium", 128, "fp32") / mean_step("medium", 128, "bf16")
    again = medium["wall_s"]["step"] / medium["next_s"]
    yield f"Medium at 128 is {once:.2f} times as fast in one measurement, {again:.2f} times in the other"
    assert phase_ratio("forward", "medium", 128) < 1


def claims_of_training():
    rows = TRAINING
    exact = smoothed(rows["fp32"]["losses"], 15)
    for precision in ("bf16", "fp16"):
        off = [abs(a - b) for a, b in zip(smoothed(rows[precision]["losses"], 15), exact, strict=True)]
        assert max(off[: 200 - 14]) < 0.001
        assert max(off) < 0.008
    assert rows["fp16"]["skipped_steps"] == 0
    vanished = {
        (row["precision"], row["scale"]): row for row in FOUND["precision"]["rows"] if row["part"] == "underflow"
    }
    fp16 = vanished["fp16", 1.0]
    assert vanished["bf16", 1.0]["zero_here"] == 0
    yield f"unscaled, {fp16['zero_here'] / fp16['nonzero_in_fp32'] * 100:.2f} % of the first batch's nonzero gradients"
    yield f"fp16 is {(rows['bf16']['step_mean_s'] / rows['fp16']['step_mean_s'] - 1) * 100:.0f} % faster than bf16"
    yield f"saves {(1 - rows['bf16']['peak_bytes'] / rows['fp32']['peak_bytes']) * 100:.0f} %"
    sums = {(row["sum"], row["terms"]): row for row in FOUND["precision"]["rows"] if row["part"] == "accumulation"}
    assert (sums["bf16", 1000]["value"], sums["bf16", 1000]["stalled_after"]) == (4.0, 350)
    assert sums["fp16", 5000]["value"] == 32.0
    yield f"accumulator loses {-sums['fp16', 1000]['accumulation_error']:.3f} to the rounding"
    yield f"what is left, {sums['fp32 += fp16', 1000]['error']:.4f}, is"
    variances = {
        row["dtype"]: row["variance of +-300"] for row in FOUND["precision"]["rows"] if row["part"] == "variances"
    }
    yield f"takes the variance below {(variances['bf16'] / 9e4 - 1) * 100:.2f} % off"


def claims_of_memory():
    contexts = (128, 256, 512)
    peaks = {key: {name: row[name]["peak_bytes"] for name in ("forward", "step")} for key, row in MEMORY.items()}
    yield f"forward alone peaks at {span((peaks['2.7B', n, 'fp32']['forward'] / GIB for n in contexts), 1)} GiB"
    yield f"A step peaks at {span((peaks['2.7B', n, 'fp32']['step'] / GIB for n in contexts[:2]), 1)} GiB at contexts"
    yield f"and at {peaks['2.7B', 512, 'fp32']['step'] / GIB:.1f} GiB at 512"
    change = {
        (name, n): 100 * (peaks["2.7B", n, "bf16"][name] / peaks["2.7B", n, "fp32"][name] - 1)
        for name in ("forward", "step")
        for n in contexts
    }
    yield f"forward alone grows by {span((change['forward', n] for n in contexts), 0)} %"
    yield f"of a step is {span((-change['step', n] for n in contexts[:2]), 1)} % lower at 128 and 256"
    yield f"and {change['step', 512]:.1f} % higher at 512"
    yield f"grows by up to {max(change['forward', n] for n in contexts):.0f} %"
    yield f"of 2.7B at 512 by {change['step', 512]:.1f} %"
    yield f"2 bytes for each weight of a matmul, {2 * matmul_weights(BIG) / GIB:.1f} GiB"
    exact, mixed = (block_parts(precision) for precision in ("fp32", "bf16"))
    copies = mixed["autocast's copies of the weights"]
    kept, left = sum(exact.values()), sum(mixed.values()) - copies
    yield f"shrink by {(1 - left / kept) * 100:.0f} %, from {kept / MIB:.0f} to {left / MIB:.0f} MiB"
    yield f"the copies add {copies / MIB:.0f} MiB"
    five = sum(sorted(exact.values())[-5:]) / kept
    yield f"{kept / MIB:.0f} MiB in fp32; five terms are {five * 100:.0f} % of it"
    gradients = 4 * block_parameters(BIG)
    yield f"gradients are {gradients / MIB:.0f} MiB, so"
    yield f"goes down by {(kept - gradients) / MIB:.0f} MiB a block"
    yield f"keeps more ({course_block_kept_bytes(BIG, 4, 512) / MIB:.0f} MiB)"
    beyond = peak_step_bytes(BIG, 4, 2048)
    assert beyond > FOUND["memory"]["device"]["memory_bytes"]
    yield f"a step needs {beyond / GIB:.0f} GiB by prediction"
    alone = MEMORY["2.7B", 512, "fp32"]["forward"]
    yield f"{(alone['requested_peak_bytes'] - alone['requested_before_bytes']) / GIB:.2f} GiB above the parameters"
    more = [
        (row[name]["peak_bytes"] - row[name]["requested_peak_bytes"]) / GIB
        for row in MEMORY.values()
        for name in ("forward", "step")
    ]
    yield f"allocated, which is {span(more, 1)} GiB more"
    yield f"16 bytes a parameter) are {16 * parameters(BIG) / GIB:.1f} GiB"
    assert all(row["step"]["peak_phase"] == "backward" for row in MEMORY.values())
    assert MEMORY["2.7B", 512, "fp32"]["residual_bytes"] == 20 * MIB


def claims_of_attention():
    one = predicted(8, 16384, 64)
    yield f"{max(one.values()) / GIB:.1f} GiB together"
    yield f"{one['saved'] / GIB:.2f} GiB, and that grows as"
    flash = 4 * 4 * 8 * 16384 * 64 + 4 * 8 * 16384
    yield f"{flash / MIB:.1f} MiB instead of {one['saved'] / GIB:.2f} GiB"
    first = [first_that_fails(8, 64, card * 1e9) for card in (24, 80, 141)]
    assert first[0] == 16384
    yield f"an 80 GB card fails first at {first[1]}, 141 GB at {first[2]}"
    longer = [
        ATTENTION[2 * n, d, "eager"][call] / ATTENTION[n, d, "eager"][call]
        for n in (4096, 8192)
        for d in DIMS
        for call in ("forward_s", "backward_s")
    ]
    yield f"a doubled length takes {span(longer, 1)} times as long"
    for call, words in (("forward_s", "{} times as fast forward"), ("backward_s", "{} times backward")):
        found = [
            ATTENTION[n, d, "eager"][call] / ATTENTION[n, d, "compiled"][call]
            for n, d, one in ATTENTION
            if one == "eager"
        ]
        yield words.format(span(found, 2))
    saved = {
        n: [ATTENTION[n, d, "eager"]["forward_s"] - ATTENTION[n, d, "compiled"]["forward_s"] for d in DIMS]
        for n in (8192, 16384)
    }
    assert all(max(one) < 1.01 * min(one) for one in saved.values())
    rate = 2 * 4 * 8 * 16384**2 / statistics.mean(saved[16384])
    yield f"forward saves {statistics.mean(saved[16384]) * 1e3:.1f} ms, about one write and one read of 8 GiB"
    yield f"of 8 GiB at {rate / 1e12:.1f} TB/s; at 8192 the {statistics.mean(saved[8192]) * 1e3:.1f} ms are more"
    yield f"than the {2 * 4 * 8 * 8192**2 / rate * 1e3:.1f} ms that this rate gives"


def claims_of_compilation():
    blocks = {
        size: {call: MODELS[size, "eager"][call] / MODELS[size, "compiled"][call] for call in ("forward_s", "step_s")}
        for size in ("small", "2.7B")
    }
    small, big = blocks.values()
    yield f"forward is {small['forward_s']:.2f} (small) to {big['forward_s']:.2f} times (2.7B) as fast"
    yield f"its step {small['step_s']:.2f} to {big['step_s']:.2f} times"
    least, most = (matmul_share(PROFILES[size, 512]["step"]) for size in ("small", "2.7B"))
    yield f"matmuls take {least * 100:.0f} % can gain {1 / least:.2f} times at most, and one of {most * 100:.0f} %"
    yield f"{1 / most:.2f} times. Compiling layer by layer"
    first = {
        variant: [row["step_first_s"] for (_, one), row in MODELS.items() if one == variant]
        for variant in ("compiled_blocks", "compiled")
    }
    yield f"a first step of {span(first['compiled_blocks'], 0)} s instead of {span(first['compiled'], 0)} s"


def claims_of_the_fastest_step():
    cells = {(row["size"], row["context"]): [] for row in FOUND["train-step"]["rows"]}
    for row in FOUND["train-step"]["rows"]:
        cells[row["size"], row["context"]].append(row)
    speedups = {cell: best(rows, speedup_of)[0] for cell, rows in cells.items()}
    busy = [speedups[cell] for cell in (("2.7B", 512), ("2.7B", 1024), ("xl", 1024))]
    found = [best(rows, bound_of) for rows in cells.values()]
    bounds, halves = ([one[at] for one in found] for at in (0, 1))
    assert len(cells) == 10 and min(speedups.values()) == speedups["2.7B", 1024] > 1
    yield f"{span(busy, 2)}\u00d7 as fast where the baseline keeps its GPU busy"
    yield f"with all of its own waits, is {span(bounds, 2)}\u00d7 as fast"
    rates = {cell: milliseconds(rows[-1], "ours") for cell, rows in cells.items()}
    for claim in (
        f"{span(bounds, 2)}\u00d7",
        f"± {span((100 * half for half in halves), 1)} %",
        known(*best(cells["2.7B", 1024], speedup_of)[:2]),
        f"{rates['small', 512]:.2f} ms",
        f"{rates['2.7B', 1024]:.1f} ms",
        f"{tflops(cells['2.7B', 1024][-1], rates['2.7B', 1024]):.0f} TFLOP/s",
    ):
        assert claim in FRONT
        assert claim.replace("to", "到") in CHINESE


CLAIMS = (
    claims_of_steps,
    claims_of_warm_up,
    claims_of_kernels,
    claims_of_softmax,
    claims_of_precision,
    claims_of_training,
    claims_of_memory,
    claims_of_attention,
    claims_of_compilation,
    claims_of_the_fastest_step,
)


@pytest.mark.parametrize("claims", CLAIMS, ids=lambda claims: claims.__name__)
def test_the_numbers_in_sentences_are_those_of_the_rows(claims):
    assert not [claim for claim in claims() if claim not in WORDS]
