"""Sentences about several GPUs: each stands where the rows bear it out, with their numbers, and not elsewhere."""

import importlib
import inspect

import pytest

from perf.studies import STUDIES
from perf.studies.on_file import NotOnFile
from perf.studies.parallel import sharding
from perf.studies.parallel.sharding import POINTS
from perf.writeup import distributed, source
from perf.writeup.answers.data_parallel import DataParallel, growth, shardings
from perf.writeup.markdown import Markup
from perf.writeup.templating import render
from tests.writeup.made_up import MACHINE, SHARDING, ddp_row, perf_folder

SHOWN = {**dict.fromkeys(("made_by", "setting", "table", "figure"), Markup("")), "is_first": True}


def said(template, **known):
    return " ".join(render(f"parallel/{template}.md", SHOWN | known).split())


def all_reduce(ranks, megabytes, ms, device="cuda"):
    row = {"device": device, "world_size": ranks, "megabytes": megabytes, "samples_s": [ms / 1e3]}
    return row | {"facts": {"bytes": megabytes * 10**6}}


def test_more_ranks_are_compared_with_what_a_ring_would_take():
    rows = [all_reduce(2, 1, 0.02), all_reduce(2, 1000, 4.0), all_reduce(4, 1, 0.05), all_reduce(4, 1000, 5.0)]
    text = said("all-reduce", growth=growth(rows))
    assert "1000 times the bytes in 200.0 times the time" in text
    assert "From 2 to 4 ranks 1 MB take 2.50 times as long and 1000 MB 1.25 times" in text
    assert "gives 1.50 times; a small call takes longer" in text and "a large one takes less" in text
    assert "gloo" not in text
    slow = [*rows[:2], all_reduce(4, 1, 0.025), all_reduce(4, 1000, 8.0)]
    text = said("all-reduce", growth=growth(slow))
    assert "1000 MB 2.00 times" in text and "a small call" not in text and "a large one" not in text


def test_a_gain_within_the_interval_of_the_steps_is_called_none():
    naive, flat = ddp_row("naive", step_ms=110, exposed_ms=40), ddp_row("flat", step_ms=109, exposed_ms=33)
    rows = [naive | {"step_s": [0.1, 0.11, 0.12]}, flat]
    text = said("minimal_ddp_flat_benchmarking", ddp=DataParallel(rows, [all_reduce(2, 1000, 4.0)]))
    assert "adds 33.00 ms, 30.3 %, to a step of 109.00 ms" in text
    assert "the bytes alone take 32.0 ms" in text and "flat has one call, but copies" in text
    assert (
        "Communication shrinks by 7.0 ms and the step by 1.0 ms" in text
        and "\u00b1 10.0 ms and \u00b1 0.0 ms. Between" in text
    )
    text = said("minimal_ddp_flat_benchmarking", ddp=DataParallel([naive, flat]))
    assert "the bytes alone" not in text and "Communication shrinks" not in text


def buckets(exposed_ms, **options):
    rows = [ddp_row("naive", step_ms=150), *(ddp_row("bucketed", size, 100 + ms, ms) for size, ms in exposed_ms)]
    return said("ddp_bucketed_benchmarking", ddp=DataParallel(rows, [all_reduce(2, 1000, 4.0)], **options))


def test_a_sweep_without_an_optimum_says_so_and_what_the_model_lacks():
    trace = {"strategy": "overlapped", "compute": [[0.0, 0.420]], "communication": [[0.0, 0.1]]}
    traces = [trace | {"world_size": 2}, trace | {"world_size": 4, "compute": [[0.0, 0.660]]}]
    text = buckets([(1, 32), (100, 26), (1000, 17)], traces=traces)
    assert "Bucketed with 1000 MiB has the shortest step, 117.00 ms" in text
    assert "from 1 to 1000 MiB what communication adds falls from 32.00 ms to 17.00 ms" in text
    assert "the kernels that compute take 420 ms" in text and "step without communication 100 ms" in text
    assert "The model does not describe these rows: at 100 MiB" in text
    assert "not distinguishable" not in text, "their samples are all alike"
    text = buckets([(1, 400.005), (100, 4.5), (1000, 5.4)], traces=traces[1:])  # w = 200 GB/s, o = 50 us
    assert "The rows have none" not in text and "does not describe" not in text and "The traces" not in text


def test_memory_is_compared_with_what_exists_at_that_time():
    states = {"none": 16, "sharded": 12, "sharded_reducing": 12}
    count = 1_998_235_200
    rows = [
        {"sharding": name, "size": "xl", "world_size": 2, "samples_s": [0.1]}
        | {"facts": dict.fromkeys(POINTS, each * count + 2**30)}
        for name, each in states.items()
    ]
    for row in rows:
        row["facts"] |= {"parameter_bytes": 4 * count, "optimizer_bytes": 8 * count}
    found = shardings(rows)
    assert {one["rest_bytes"] for one in found.values()} == {2**30}
    assert "1.00 GiB in all rows" in said("sharding", by=found)


def test_steps_whose_ratio_may_be_1_are_not_ranked():
    facts = {"parameter_bytes": 4, "optimizer_bytes": 8}
    times = {"none": [0.10, 0.11, 0.12], "sharded": [0.15, 0.16, 0.17], "sharded_reducing": [0.08, 0.10, 0.13]}
    found = shardings([{"sharding": name, "samples_s": samples, "facts": facts} for name, samples in times.items()])
    assert [one["of_whole"].verdict for one in found.values()] == ["even", "better", "even"]
    text = said("sharding", by=found)
    assert "sharded, 1.455\u00d7 \u00b1 11.0 % as long: the broadcasts" in text
    assert "100.00 ms, 0.909\u00d7 \u00b1 26.6 % as long as with the whole state." in text


def test_a_strategy_that_was_not_measured_is_not_on_file():
    with pytest.raises(NotOnFile):
        DataParallel([ddp_row("naive")]).step_s("flat")


def test_a_chapter_about_two_numbers_of_ranks_says_which(undrawn, tmp_path):
    naive = ddp_row("naive")
    folder = perf_folder(tmp_path, {"ddp": [naive]})
    chapter = distributed.data_parallel("naive_ddp_benchmarking", "naive", size="xl")
    assert "*On" not in chapter(source.read(folder, MACHINE), tmp_path)
    perf_folder(tmp_path, {"ddp": [naive | {"world_size": 4}]}, f"{MACHINE}-x4")
    text = chapter(source.read(folder, MACHINE), tmp_path)
    assert text.index("*On 2 GPUs.*") < text.index("| naive | 2 |") < text.index("*On 4 GPUs.*")


def test_a_study_writes_its_chapter_from_its_rows_on_that_size(undrawn, monkeypatch, tmp_path):
    found = source.read(perf_folder(tmp_path, {"sharding": SHARDING}), MACHINE)
    text = distributed.of_study("sharding", "xl")(found, tmp_path / "figures")
    assert "- xl, context 512, 2 ranks: sharded is 1.000\u00d7 as fast" in text and "holds 50.0 % of it" in text
    assert "| xl | 512 | sharded | 2 |" in text and "(figures/sharding-box-x2.png)" in text
    monkeypatch.setattr(sharding, "groups", lambda rows: [rows[:1], rows[1:]], raising=False)
    text = distributed.of_study("sharding", "xl")(found, tmp_path / "figures")
    assert text.count("Measured with") == 2 and "(figures/sharding-box-x2-2.png)" in text and "as fast" not in text
    with pytest.raises(NotOnFile):
        distributed.of_study("sharding", "2.7B")(found, tmp_path / "figures")


@pytest.mark.parametrize("name", distributed.OWN_ANSWERS)
def test_a_study_that_writes_its_chapter_is_called_as_it_asks(name):
    study = importlib.import_module(f"perf.studies.{STUDIES[name]}")
    inspect.signature(study.answers).bind([])
    inspect.signature(study.shown).bind([])


def test_medians_within_their_intervals_rank_no_bucket_size():
    small = ddp_row("bucketed", 1) | {"step_s": [0.10, 0.11, 0.12], "exposed_s": [0.01, 0.02, 0.03]}
    large = ddp_row("bucketed", 1000) | {"step_s": [0.105] * 3, "exposed_s": [0.015] * 3}
    text = said("ddp_bucketed_benchmarking", ddp=DataParallel([small, large]))
    assert "1 of the 1 others is not distinguishable from it" in text
    assert "the smallest and the largest are not distinguishable (\u00b1 10 ms and \u00b1 0 ms)" in text
    assert not DataParallel.is_resolved(small, large | {"exposed_s": [-0.1] * 3}, "exposed_s"), (
        "a ratio needs two above 0"
    )
