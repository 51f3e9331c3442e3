"""The course's `mixed_precision_accumulation`: one sum, in six arithmetics."""

from perf.studies.rows import Row

TERM = 0.01
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

SUMS = (  # sum, accumulator, term, cast of the term, number of terms; the first four are the course's
    ("fp32", "fp32", "fp32", False, 1000),
    ("fp16", "fp16", "fp16", False, 1000),
    ("fp32 += fp16", "fp32", "fp16", False, 1000),
    ("fp32 += fp16.float()", "fp32", "fp16", True, 1000),
    ("bf16", "bf16", "bf16", False, 1000),
    ("fp16", "fp16", "fp16", False, 5000),
)


def rows() -> list[Row]:
    """Return each sum with its error and the two parts of the error.

    The representation error is that of an exact sum of rounded terms; the rest comes from rounding the running sum.
    """
    return [_row(*each) for each in SUMS]


def _row(name: str, accumulator: str, term: str, cast: bool, terms: int) -> Row:
    import torch

    total = torch.zeros((), dtype=getattr(torch, DTYPES[accumulator]))
    rounded = torch.tensor(TERM, dtype=getattr(torch, DTYPES[term]))
    stalled_after = None
    for number in range(terms):
        before = total.clone()
        total += rounded.float() if cast else rounded
        if stalled_after is None and total == before:
            stalled_after = number
    value, exact_of_rounded = float(total), terms * float(rounded)
    return {
        "part": "accumulation",
        "sum": name,
        "terms": terms,
        "value": value,
        "error": value - terms * TERM,
        "representation_error": exact_of_rounded - terms * TERM,
        "accumulation_error": value - exact_of_rounded,
        "stalled_after": stalled_after,
    }


def table(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    return [
        {
            "sum": row["sum"],
            "terms": row["terms"],
            "value": repr(row["value"]),
            "error": f"{row['error']:+.3g}",
            "of representation": f"{row['representation_error']:+.3g}",
            "of accumulation": f"{row['accumulation_error']:+.3g}",
            "stalls": "" if row["stalled_after"] is None else f"after {row['stalled_after']} terms",
        }
        for row in rows
    ]


def answer(rows: list[Row]) -> str:
    """Return the two sentences of the answer."""
    by_sum = {(row["sum"], row["terms"]): row for row in rows}
    fp32, fp16 = by_sum["fp32", 1000], by_sum["fp16", 1000]
    mixed, cast = by_sum["fp32 += fp16", 1000], by_sum["fp32 += fp16.float()", 1000]
    bf16, longer = by_sum["bf16", 1000], by_sum["fp16", 5000]
    same = "is the same" if mixed["value"] == cast["value"] else f"gives {cast['value']!r}"
    return (
        f"An fp16 accumulator is off by {fp16['error']:+.4f}, of which rounding {TERM} to fp16 makes only "
        f"{fp16['representation_error']:+.4f} and rounding the running sum {fp16['accumulation_error']:+.4f}; once a "
        "term is less than half the distance to the next number the sum stands still, in bf16 at "
        f"{bf16['value']:g} and in fp16, given {longer['terms']} terms, at {longer['value']:g}. "
        f"An fp32 accumulator adds the same fp16 terms with an accumulation error of {mixed['accumulation_error']:g} "
        f"(a cast before the addition {same}) and leaves the representation error, "
        f"{mixed['representation_error']:.5f}, "
        f"{mixed['error'] / fp32['error']:.0f} times the {fp32['error']:.6f} of fp32 throughout: inputs may be "
        "rounded, sums should be kept in fp32."
    )
