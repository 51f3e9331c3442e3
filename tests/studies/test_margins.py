"""The margins of a check: of every case of attention, the share of each bound that right code takes."""

from click.testing import CliRunner

from perf.harness.case import Case
from perf.studies import margins
from tests.workloads.attention_mutations import params, planted


def test_the_cpu_s_own_cases_are_all_within_their_bounds():
    done = CliRunner().invoke(margins.command, ["-b", "smoke.", "--sample", "4"])
    assert done.exit_code == 0, done.output
    assert "4 cases: 0 refused, 0 not checked" in done.output
    assert "REFUSED" not in done.output


def test_a_wrong_case_is_named_with_its_bound_and_a_right_one_is_not():
    case = Case("smoke.SmokeAttention", "attention", params("bfloat16", "forward"), "cpu", "wall", "warm")
    with planted("out x 1.01", case.params["seq_len"]):
        wrong = margins.checked(case)
    assert "slope" in {bound.what for bound in wrong.bounds if not bound.share <= 1}
    (row,) = margins.table([wrong, margins.checked(case)])
    assert row["cases"] == 2
    assert row["slope"].startswith("4.") or row["slope"].startswith("5.")


def test_cases_of_one_problem_lie_side_by_side_and_are_named_once():
    cases = margins.selected("attention.", 65536)
    assert len(cases) > 1000
    problems = [margins._by_problem(case)[:3] for case in cases]
    assert len({repr(one) for one in problems}) == sum(
        a != b for a, b in zip(problems, [None, *problems], strict=False)
    )
