"""Which commits a page reads: asv's graphs say where the newest value of each case lies."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf.harness.journal import Journal
from perf.site import newest, pages
from perf.site.attention import collected
from perf.site.newest import Site
from perf.site.step import page as step_page
from tests.site import steps, synthetic
from tests.site.synthetic import H200, session


def described(commit: str) -> pages.Commit:
    return pages.Commit(commit, "A subject", "2026-01-02")


def graph(points: dict[int, list[Any]], machine: str = H200) -> tuple[str, Any]:
    return "", SimpleNamespace(
        benchmark_name=f"{steps.PHASES}.track_time",
        params={"machine": machine},
        data_points={revision: [values] for revision, values in points.items()},
    )


def test_only_commits_with_the_newest_of_something_are_read() -> None:
    nothing = math.nan
    wide = graph({9: [nothing, None, None], 8: [1.0, None, None], 5: [1.0, 2.0, None], 4: [1.0, 2.0, None]})
    assert newest.revisions([wide], H200, range(10)) == {9, 8, 5}, "9 is the newest try, 4 has nothing that is newest"
    assert newest.revisions([wide], H200, {4, 5}) == {5}, "8 and 9 have no records"
    assert newest.revisions([wide], "laptop", range(10)) == set()
    torch_213 = graph({7: [1.0, 2.0, 3.0]})
    assert newest.revisions([wide, torch_213], H200, range(10)) == {9, 8, 7, 5}, "each environment by itself"


def test_a_commit_is_measured_if_any_case_has_a_number_there(tmp_path: Path) -> None:
    times, sizes = graph({1: [1.0, None], 2: [None, math.nan]}), graph({3: [None, 1.0]})
    site = Site(tmp_path, [times, sizes, graph({4: [1.0]}, "laptop")], {}, {}, frozenset(), described)
    assert site.measured(H200) == {1, 3}


def test_each_case_is_of_its_newest_commit(tmp_path: Path, monkeypatch: Any) -> None:
    for size, commit in (("small", "a"), ("small", "b"), ("xl", "c"), ("small", "d")):
        steps.write_records(tmp_path, steps.phases(size), commit * 40)
    asked: list[str] = []
    read = newest.read_commit
    monkeypatch.setattr(newest, "read_commit", lambda *where: asked.append(where[2][0]) or read(*where))
    revisions = {name * 40: number for name, number in zip("cbade", (1, 2, 3, 4, 5), strict=True)}
    published = frozenset(revisions) - {"d" * 40}
    known = graph({1: [1.0, None], 2: [None, 1.0], 3: [None, 1.0]})
    site = Site(tmp_path, [known], {}, revisions, published, described)
    cells = site.cells(H200)[steps.PHASES]
    assert asked == ["a", "c"], "newest first; b has nothing that is newest, d is not published, e has no records"
    assert site.commits(H200) == ["a" * 40, "c" * 40]
    unfinished = Site(tmp_path, [graph({1: [1.0], 3: [1.0]})], {}, revisions, frozenset(revisions), described)
    assert [one[0] for one in unfinished.commits(H200)] == ["d", "a", "b"], "asv has nothing of b and d: interrupted"
    assert [(cell.result.params["size"], cell.commit[0]) for cell in cells] == [("small", "a")] * 8 + [("xl", "c")] * 8


def test_a_case_that_failed_at_its_newest_commit_is_failing_unless_it_is_only_unavailable(tmp_path: Path) -> None:
    steps.write_records(tmp_path, steps.phases(), "a" * 40)
    first, second, third, *_ = steps.phases()
    failed = [
        first | {"status": "wrong", "reason": "out differs"},
        second | {"status": "unavailable", "reason": "needs two GPUs"},
    ]
    steps.write_records(tmp_path, [*failed, third], "b" * 40)
    tried = graph({2: [None, None, 1.0], 1: [1.0] * 3})
    site = Site(tmp_path, [tried], {}, {"a" * 40: 1, "b" * 40: 2}, frozenset({"a" * 40, "b" * 40}), described)
    ((case, reason),) = [(one.params, one.reason) for one in site.failing(H200)]
    assert (case, reason) == (first["params"], "out differs")


@pytest.mark.parametrize(("lengths", "shown"), [([1024], "b"), ([1024, 4096], "a")], ids=["a few cases", "most"])
def test_the_attention_page_is_of_the_newest_grid(lengths: list[int], shown: str, tmp_path: Path) -> None:
    """A commit at which the history's few cases were measured, without most peers, does not take its place."""
    few = dataclasses.replace(synthetic.GPU, axes=synthetic.GPU_AXES | {"seq_len": lengths})
    synthetic.write_records(tmp_path, few, "a" * 40, 1)
    synthetic.write_records(tmp_path, synthetic.GPU, "b" * 40, 1)
    synthetic.write_records(tmp_path, synthetic.SHORT, "c" * 40, 1)
    numbers = {name * 40: number for number, name in enumerate("cba")}
    graphs = [graph({0: [None, None, 1.0], 1: [None, 1.0], 2: [1.0]})]
    site = Site(tmp_path, graphs, {}, numbers, frozenset(numbers), described)
    grid, short = collected.collect(site, H200).measured
    assert (grid.benchmark, grid.commit.hash[0], grid.newer) == (synthetic.GPU.benchmark, shown, int(shown == "b"))
    assert len(grid.results) == {"a": 72, "b": 108}[shown]
    assert (short.benchmark, short.commit.hash[0], short.newer) == (synthetic.SHORT.benchmark, "c", 0)


def test_an_interrupted_grid_does_not_take_the_place_of_a_complete_one(tmp_path: Path) -> None:
    synthetic.write_records(tmp_path, synthetic.GPU, "a" * 40, visits=2)
    synthetic.write_records(tmp_path, synthetic.GPU, "b" * 40)
    synthetic.write_records(tmp_path, synthetic.SHORT, "a" * 40, visits=2)
    numbers = {name * 40: number for number, name in enumerate("ba")}
    graphs = [graph({0: [None, 1.0], 1: [1.0, None]})]
    site = Site(tmp_path, graphs, {}, numbers, frozenset(numbers), described)
    grid, short = collected.collect(site, H200).measured
    assert (grid.commit.hash[0], grid.newer) == ("b", 1)
    assert short.commit.hash[0] == "a", "there is no other"


def test_the_machine_of_the_newest_commit_comes_first(tmp_path: Path) -> None:
    graphs = [graph({3: [1.0]}, "full"), graph({3: [1.0]}, "full"), graph({3: [1.0]}, "few"), graph({4: [1.0]}, "new")]
    graphs.append(graph({5: [None]}, "failed"))
    steps.write_records(tmp_path, steps.phases(), "a" * 40)  # of a machine without results
    site = Site(tmp_path, graphs, {}, {}, frozenset(), described)
    assert site.machines == ["new", "full", "few", "failed", H200]


def test_machines_with_several_of_a_gpu_follow_the_one_with_one(tmp_path: Path) -> None:
    measured = {"h200": 3, "h200-x2": 5, "h200-x10": 1, "h100": 4, "h100-x2-1500mhz": 2, "other-x": 0}
    site = Site(tmp_path, [graph({at: [1.0]}, name) for name, at in measured.items()], {}, {}, frozenset(), described)
    assert site.machines == list(measured), "the newest commit is that of two H200s"


def benchmark(visits: list[dict[str, Any]]) -> dict[str, Any]:
    """The axes of these visits, as asv lists them."""
    params = [visit["params"] for visit in visits]
    values = [sorted({repr(one[name]) for one in params}) for name in params[0]]
    return {"param_names": list(params[0]), "params": values}


def test_a_case_that_its_class_no_longer_has_is_not_shown(tmp_path: Path) -> None:
    steps.write_records(tmp_path, steps.phases(), "a" * 40)
    today = benchmark(steps.phases())
    fewer = today | {"params": [*today["params"][:-1], ["'gpu_wall'"]]}
    another = {name: values[:-1] for name, values in today.items()}
    for known, count in ((today, 8), (fewer, 4), (another, 0)):
        known_by_name = {f"{steps.PHASES}.track_time": known}
        site = Site(tmp_path, [], known_by_name, {"a" * 40: 1}, frozenset({"a" * 40}), described)
        assert len(site.cells(H200).get(steps.PHASES, [])) == count


def test_cases_are_in_the_order_of_their_grid_whichever_is_newer(tmp_path: Path) -> None:
    steps.write_records(tmp_path, steps.phases("small"), "a" * 40)
    steps.write_records(tmp_path, steps.phases("xl"), "b" * 40)
    revisions = {"a" * 40: 1, "b" * 40: 2}
    known = {f"{steps.PHASES}.track_time": benchmark([*steps.phases("small"), *steps.phases("xl")])}
    graphs = [graph({1: [1.0, None], 2: [None, 1.0]})]
    cells = Site(tmp_path, graphs, known, revisions, frozenset(revisions), described).cells(H200)[steps.PHASES]
    assert [(cell.result.params["size"], cell.commit[0]) for cell in cells] == [("small", "a")] * 8 + [("xl", "b")] * 8


def test_the_newest_records_are_read_even_where_asv_has_no_graph_of_them(tmp_path: Path) -> None:
    steps.write_records(tmp_path, steps.phases(), "a" * 40)
    assert len(Site(tmp_path, [], {}, {"a" * 40: 1}, frozenset({"a" * 40}), described).cells(H200)[steps.PHASES]) == 8
    assert Site(tmp_path, [], {}, {"a" * 40: 1}, frozenset({"a" * 40}), described).cells("laptop") == {}


def test_a_sitting_is_a_day_and_a_device(tmp_path: Path) -> None:
    journal = Journal(tmp_path, H200, "a" * 40)
    for name, uuid in (("1", "GPU-1"), ("2", "GPU-2")):
        journal.write(session(name, day="2026-01-01", harness="3", device={"uuid": uuid}))
        case = {"benchmark": "a.Class", "visit": 0, "status": "ok", "reason": "", "timed": False, "cache": "cold"}
        journal.write({"kind": "visit", "session": name, "params": {"n": int(name)}} | case)
    journal.close()
    found = newest.sitting_of(tmp_path, H200, "a" * 40)
    assert [found("a.Class", (n,)) for n in (1, 2, 3)] == ["2026-01-01 GPU-1", "2026-01-01 GPU-2", ""]
    assert newest.harness_of(tmp_path, H200, "a" * 40)("a.Class", (3,)) == "3"


def test_a_case_is_of_the_harness_that_measured_it_last(tmp_path: Path, monkeypatch: Any) -> None:
    case = {"benchmark": "a.Class", "visit": 0, "status": "ok", "reason": "", "timed": False, "cache": "cold"}
    journal = Journal(tmp_path, H200, "a" * 40)
    for harness, sizes in (("2", ("small", "xl")), ("3", ("xl",))):
        journal.write(session(harness, harness=harness))
        for size in sizes:
            journal.write({"kind": "visit", "session": harness, "params": {"size": size, "n": 1}} | case)
    journal.close()
    found = newest.harness_of(tmp_path, H200, "a" * 40)
    assert [found("a.Class", (size, 1)) for size in ("small", "xl", "large")] == ["2", "3", ""]
    assert newest.harness_of(tmp_path, H200, "b" * 40)("a.Class", ("xl", 1)) == ""
    steps.write_records(tmp_path, steps.phases(), "c" * 40)
    monkeypatch.setattr(newest, "read_commit", None)
    assert newest.harness_of(tmp_path, H200, "c" * 40)("a.Class", ("xl", 1)) == "2", "no visit is read"


def test_an_environment_is_that_of_the_newest_session(tmp_path: Path) -> None:
    journal = Journal(tmp_path, H200, "a" * 40)
    for torch in ("2.11.0", "2.13.0"):
        software = {"torch": torch, "python": "3.12.3", "triton": ""}
        journal.write(session(torch, device={"driver": "580.95"}, software=software))
    journal.close()
    found = {"torch": "2.13.0", "python": "3.12.3", "driver": "580.95", "harness": "2"}
    assert newest.environment(tmp_path, H200, "a" * 40) == found
    assert newest.environment(tmp_path, H200, "b" * 40) == {}


def test_a_graph_of_another_machine_is_no_graph_of_this_one(tmp_path: Path) -> None:
    steps.write_records(tmp_path, steps.phases(), "a" * 40)
    for machine, linked in ((H200, True), ("laptop", False)):
        name = f"{steps.PHASES}.track_time"
        graphs, known = [graph({1: [1.0]}, machine)], {name: benchmark(steps.phases())}
        site = Site(tmp_path, graphs, known, {"a" * 40: 1}, frozenset({"a" * 40}), described)
        assert site.series(H200) == (frozenset({name}) if linked else frozenset())
        results = step_page.collect(site, H200)
        assert bool(results.link(results.phases[0].result, "track_time")) == linked
