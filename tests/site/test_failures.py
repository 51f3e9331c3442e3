"""Cases without a number are named by the axes that tell them from the others of their class."""

from perf.site.failures import by_reason
from tests.site.cases import case


def test_a_block_has_its_axes_another_set_its_cases_and_ours_come_first() -> None:
    def of(impl: str, failed: set[tuple[int, int]], status: str) -> list:
        cells = [(seq_len, d) for seq_len in (128, 256) for d in (32, 64)]
        return [
            case(impl, params={"seq_len": n, "d": d}, status=status if (n, d) in failed else "ok") for n, d in cells
        ]

    some, whole = {(128, 32), (128, 64), (256, 32)}, {(n, d) for n in (128, 256) for d in (32, 64)}
    results = [
        *of("sdpa", {(256, 32), (256, 64)}, "unavailable"),
        *of("flex", whole, "error"),
        *of("triton", some, "wrong"),
    ]
    found = by_reason(results)
    assert [(one["name"], one["status"], one["count"], one["cases"]) for one in found] == [
        (
            "attention.FlashAttention, Triton",
            "wrong",
            3,
            ["seq_len 128, d 32", "seq_len 128, d 64", "seq_len 256, d 32"],
        ),
        ("attention.FlashAttention, FlexAttention", "error", 4, ["every case"]),
        ("attention.FlashAttention, SDPA", "unavailable", 2, ["seq_len 256"]),
    ]
    clocks = [case(params={"clock": clock}, status="error") for clock in ("gpu_wall", "device_busy")]
    assert [one["count"] for one in by_reason(clocks)] == [1], "a step fails by every clock"
