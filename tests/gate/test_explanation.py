import pytest

from perf.gate.evidence import Outcome
from perf.gate.explanation import MAX_LINE, why_larger, why_slower


def ran(*kernels, triton=()):
    return Outcome("ok", kernels=tuple((name, 1, us) for name, us in kernels), triton_kernels=triton)


def held(*allocations):
    return Outcome("ok", peak_bytes=sum(size for size, _ in allocations), largest_allocations=allocations)


def compiled(**facts):
    return (
        {"name": "bwd", "registers": 168, "spills": 0, "shared_bytes": 49152, "num_warps": 8, "sass": "ab"} | facts,
    )


@pytest.mark.parametrize(
    ("base", "head", "change_us", "line"),
    [
        (ran(("fwd", 100), ("bwd", 200)), ran(("fwd", 101), ("bwd", 230)), 31, "bwd +30.0 µs (97% of the change)"),
        (ran(("bwd", 200)), ran(("bwd", 230)), 60, "bwd +30.0 µs (50% of the change)"),
        (
            ran(("fwd", 9), ("bwd", 200)),
            ran(("fwd", 29), ("bwd", 170)),
            -20,
            "bwd -30.0 µs (150% of the change; the rest of the call +10.0 µs)",
        ),
        (ran(("bwd", 200)), ran(("bwd", 180)), -20, "bwd -20.0 µs (100% of the change)"),
        (ran(("fwd", 100)), ran(("fwd", 100), ("copy", 8)), 8, "new kernel copy +8.0 µs (100% of the change)"),
        (ran(("fwd", 100), ("copy", 8)), ran(("fwd", 100)), -8, "without copy -8.0 µs (100% of the change)"),
        (
            ran(("gemm_128x128_stages3", 100)),
            ran(("gemm_128x64_stages3", 120)),
            20,
            "gemm_128x128_stages3, now gemm_128x64_stages3, +20.0 µs (100% of the change)",
        ),
        (
            ran(("gemm_128x128", 100)),
            ran(("gemm_128x64", 90), ("gemm_128x32", 60)),
            50,
            "new kernel gemm_128x32 +60.0 µs (120% of the change; the rest of the call -10.0 µs)",
        ),
        (ran(("bwd", 200)), ran(("bwd", 201)), 50, "the kernels of one call do not explain it: 200.0 -> 201.0 µs"),
        (ran(("bwd", 200)), Outcome("ok"), 50, ""),
    ],
)
def test_the_kernel_that_moved_most(base, head, change_us, line):
    assert why_slower(base, head, change_us * 1e-6) == line


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"registers": 255, "spills": 12, "sass": "cd"}, "registers 168 -> 255, spills 0 -> 12"),
        ({"shared_bytes": 98304, "sass": "cd"}, "shared 48 KiB -> 96 KiB"),
        ({"num_warps": 4, "sass": "cd"}, "num_warps 8 -> 4"),
        ({"sass": "cd"}, "SASS differs"),
        ({}, "same SASS"),
    ],
)
def test_what_the_compiler_made_of_it(facts, line):
    base, head = ran(("bwd", 200), triton=compiled()), ran(("bwd", 230), triton=compiled(**facts))
    assert why_slower(base, head, 30e-6) == f"bwd +30.0 µs (100% of the change), {line}"


def test_of_two_versions_of_a_kernel_nothing_is_claimed():
    twice = compiled() + compiled(registers=255)
    assert why_slower(ran(("bwd", 200), triton=compiled()), ran(("bwd", 230), triton=twice), 3e-5).endswith("change)")


@pytest.mark.parametrize(
    ("base", "head", "line"),
    [
        (held((2**20, "a.py:1")), held((2**20, "a.py:1"), (2**19, "b.py:2")), "new: 512 KiB at b.py:2"),
        (held((2**20, "a.py:1"), (100, "b.py:2")), held((2**20, "a.py:1")), "gone: 100 B at b.py:2"),
        (held((2**20, "a.py:1")), held((2**20, "a.py:1"), (2**20, "a.py:1")), "1 MiB -> 2 MiB at a.py:1"),
        (held((3 * 2**29, "a.py:1")), held((2**30, "a.py:1")), "1.5 GiB -> 1 GiB at a.py:1"),
        (
            held((2**30, "a.py:56 make < c.py:3 run"), (2**20, "b.py:7")),
            held((2**30, "a.py:57 make < c.py:4 run"), (2**21, "b.py:9")),
            "1 MiB -> 2 MiB at b.py:9",
        ),
        (
            held((2**20, "a.py:56 make")),
            held((2**20, "a.py:57 make"), (2**19, "a.py:58 run")),
            "new: 512 KiB at a.py:58 run",
        ),
        (Outcome("ok", peak_bytes=1), Outcome("ok", peak_bytes=2), ""),
        (Outcome("ok"), held((2**30, "a.py:1")), ""),
    ],
)
def test_the_allocation_that_moved_most(base, head, line):
    assert why_larger(base, head) == line


def test_one_line_of_a_length_that_fits():
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>\n(int)" * 3
    assert len(why_slower(ran(("a", 1)), ran((name, 30)), 29e-6)) <= MAX_LINE
    line = why_larger(held((1, "a")), held((2**20, f"x.py:1\n{name}")))
    assert len(line) == MAX_LINE
    assert "\n" not in line
