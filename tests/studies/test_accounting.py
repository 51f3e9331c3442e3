"""The worked problems say what the course asks for, in a terminal and for a machine."""

import json

import pytest
from click.testing import CliRunner

from perf.studies.accounting.study import PROBLEMS, command

FIGURES = {
    "pytorch_attention": ("8.00 GiB", "16.10 GiB", "32.00 GiB", "128.5 MiB", "51.2", "16384 does not fit 24 GB"),
    "ddp_bucketed_benchmarking": ("159.9 ms", "16.04 ms", "2.10 ms", "5.16 ms", "178.8 MB", "1.79 ms", "n = 44.7"),
    "communication_accounting": (
        "219,848,638,464",
        "819 GiB",
        "1,638 GiB",
        "3,517.58 GB = 3,276 GiB",
        "17,547,264 B",
        "N = 38",
        "20,444 tokens, 319.4 a device",
        "25,302 tokens, 395.3 a device",
        "3,925 tokens, 61.3 a device",
    ),
    "optimizer_state_sharding_accounting": ("7.444 GiB", "14.888 GiB", "22.332 GiB", "29.776 GiB"),
    "gradient_checkpointing": ("0.84, so 1", "6,946 MiB", "6,211 MiB", "8,583 MiB", "15,245 MiB", "116,842 MiB"),
    "fsdp_accounting": ("25.38 GiB", "38.07 GiB", "50.77 GiB", "12.69 GiB", "0.175 ms", "0.326 ms", "1,099"),
    "alternate_ring_all_reduce": ("(N - 1) S/W", "N/2"),
    "data_parallel_calcs": ("30.82", "1.93"),
    "fsdp_calcs": ("30.82",),
    "tp_calcs": ("7.99", "14.98"),
    "fsdp_tp_calcs": ("246.2", "208.4", "72.1", "52.1"),
    "leaderboard": ("8,125,698,048", "5.04 PFLOP", "657 TFLOP/s", "18.55 GiB", "60.54 GiB", "8.50 GiB"),
}


def run(*arguments):
    return CliRunner(env={"COLUMNS": "80"}).invoke(command, arguments)


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_problem_has_its_figures_and_fits_a_terminal(name):
    done = run("--problem", name)
    assert done.exit_code == 0
    assert done.output.startswith(f"{name} (202")
    words = " ".join(done.output.split())
    assert [figure for figure in FIGURES[name] if figure not in words] == []
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_devices_grow_with_the_batch():
    lines = run("--problem", "communication_accounting").output.splitlines()
    assert [line.split()[-1] for line in lines if "devices at B" in line] == ["41", "46", "61", "156"]


def test_all_are_printed_and_kept(tmp_path):
    done = run("--out", str(tmp_path))
    assert [line.split()[0] for line in done.output.splitlines() if " points)" in line or " point)" in line] == list(
        PROBLEMS
    )
    kept = json.loads((tmp_path / "accounting.json").read_text())
    assert [one["name"] for one in kept] == list(PROBLEMS)
    assert all(line["result"] or line["formula"] for one in kept for line in one["lines"])


def test_an_unknown_problem_is_one_line():
    done = run("--problem", "fsdp")
    assert done.exit_code == 2
    assert "'fsdp' is not one of 'pytorch_attention'" in done.output
