"""asv publishers: the site works without the internet, and has our pages, a class each.

Named in asv.conf.json's `plugins`; `asv publish` then calls every subclass of `OutputPublisher` defined here.
"""

import functools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv.publishing import OutputPublisher
from asv.util import UserError
from click import ClickException

from perf.gate import acceptance
from perf.harness import records
from perf.report import gates, left_out, newest, offline, pages
from perf.report.attention import page as attention_page
from perf.report.attention.catalogue import SECTIONS
from perf.report.changes import page as change_page
from perf.report.changes import rates as change_rates
from perf.report.changes import rows as change_rows
from perf.report.distributed import page as distributed_page
from perf.report.history import Series, series_of
from perf.report.overview import page as overview_page
from perf.report.overview import rows as overview_rows
from perf.report.roofline import page as roofline_page
from perf.report.step import page as step_page
from perf.report.step.rows import PHASES, VARIANTS
from perf.report.trust import page as trust_page
from perf.report.trust import records as trust_records
from perf.selection import asv_classes


class OverviewSite(OutputPublisher):
    """Writes overview.html and changes.html and links them: what every machine measures, and what became of it."""

    name = "overview"
    button_label = "Overview"
    description = "What is measured, up to which commit, and the newest verdicts"
    order = 9

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is not the one that we know."""
        directory = _records(conf)
        commits = {revision: commit for commit, revision in revisions.items()}
        about = {name: (one.__doc__ or "").partition("\n")[0].replace("`", "") for name, one, _ in asv_classes() if one}
        site = _site(conf, repo, benchmarks, graphs, revisions)
        machines = []
        for name in _machines(directory, graphs):
            measured = [
                overview_page.Measured(one, about.get(one.benchmark, ""), _describe(repo, commits[max(one.revisions)]))
                for one in overview_rows.classes_of(graphs, benchmarks, name)
            ]
            found, skipped = gates.read(directory, name)
            skipped += left_out.left_out(Path(conf.results_dir) / name, site.published)
            changed = _changed(site, name, repo, found)
            machines.append(overview_page.Machine(name, _hardware(graphs, name), measured, found, skipped, changed))
        machines.sort(key=lambda one: -one.cells)
        html_dir = Path(conf.html_dir)
        _add_page(cls, html_dir, overview_page.render(conf.project, machines, conf.show_commit_url))
        changes = [one.changed for one in machines]
        _add_page(cls, html_dir, change_page.render(conf.project, changes, conf.show_commit_url), "changes", "Changes")


class AttentionSite(OutputPublisher):
    """Writes attention.html, links it, and replaces every external file of index.html by a local one."""

    name = "attention"
    button_label = "Attention"
    description = "Attention at the newest commit: times, ceilings and peers"
    order = 10

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is not the one that we know."""
        html_dir = Path(conf.html_dir)
        measured, silent = _collect(conf, repo, benchmarks, graphs, revisions)
        _add_page(cls, html_dir, attention_page.render(conf.project, measured, silent, conf.show_commit_url))
        try:
            offline.make_offline(html_dir)
        except offline.UnknownPage as error:
            raise UserError(str(error)) from None


class StepSite(OutputPublisher):
    """Writes step.html and links it: each phase of a training step, and the ways to run one."""

    name = "step"
    button_label = "Training step"
    description = "Where a training step's time and memory go, and what each way to run it takes"
    order = 11

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is not the one that we know."""
        site = _site(conf, repo, benchmarks, graphs, revisions)
        machines, silent = [], []
        for name in _machines(site.directory, graphs):
            cells = site.cells(name)
            phases, variants = cells.get(PHASES, []), [cell for way in VARIANTS for cell in cells.get(way, ())]
            used = dict.fromkeys(cell.commit for cell in (*phases, *variants))
            if not used:
                silent.append(name)
                continue
            described = [_describe(repo, commit) for commit in used]
            machines.append(step_page.Machine(name, phases, variants, described, frozenset(benchmarks)))
        page = step_page.render(conf.project, machines, silent, conf.show_commit_url)
        _add_page(cls, Path(conf.html_dir), page)


class RooflineSite(OutputPublisher):
    """Writes roofline.html and links it: every case against what its device was measured to do at most."""

    name = "roofline"
    button_label = "Roofline"
    description = "What fraction of the measured ceiling each case reaches, and how that went"
    order = 11.3

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is not the one that we know."""
        site = _site(conf, repo, benchmarks, graphs, revisions)
        describe = functools.partial(_describe, repo)
        found = [roofline_page.collect(site, name, describe) for name in _machines(site.directory, graphs)]
        _add_page(cls, Path(conf.html_dir), roofline_page.render(conf.project, found, conf.show_commit_url))


class DistributedSite(OutputPublisher):
    """Writes distributed.html and links it: strategies, bucket sizes, collectives and sharding over several ranks."""

    name = "distributed"
    button_label = "Distributed"
    description = "What communication adds to a step, by which buckets, and what sharding saves"
    order = 11.6

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is not the one that we know."""
        site = _site(conf, repo, benchmarks, graphs, revisions)
        describe = functools.partial(_describe, repo)
        found = [distributed_page.collect(site, name, describe) for name in _machines(site.directory, graphs)]
        _add_page(cls, Path(conf.html_dir), distributed_page.render(conf.project, found, conf.show_commit_url))


class TrustSite(OutputPublisher):
    """Writes trust.html and links it: what the gate's self-tests on file say, machine by machine."""

    name = "trust"
    button_label = "Trust"
    description = "How far the gate's verdicts may be believed: false alarms, planted slow-downs found"
    order = 12

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is not the one that we know."""
        directory = _records(conf)
        found = [
            trust_page.Machine(name, *trust_records.read(directory, name)) for name in _machines(directory, graphs)
        ]
        finder = change_rates.rates()
        page = trust_page.render(conf.project, found, _negligible(), finder, conf.show_commit_url, _accepted())
        _add_page(cls, Path(conf.html_dir), page)


def _add_page(publisher: type[OutputPublisher], html_dir: Path, page: str, name: str = "", label: str = "") -> None:
    """The publisher's own, or another of that name."""
    name, label = name or publisher.name, label or publisher.button_label
    try:
        offline.replace_text(html_dir / f"{name}.html", page)
        offline.add_link(html_dir, name=name, href=f"{name}.html", label=label)
    except offline.UnknownPage as error:
        raise UserError(str(error)) from None


def _changed(site: newest.Site, machine: str, repo: Any, found: list[gates.Gate]) -> change_page.Machine:
    commits = {revision: commit for commit, revision in site.revisions.items()}
    harness_of = functools.cache(lambda revision: newest.harness_of(site.directory, machine, commits[revision]))
    series = list(change_rows.series_of(site.graphs, site.benchmarks, machine, harness_of))
    return change_page.Machine(
        machine,
        change_rows.changes_of(series, _negligible()),
        len({revision for one in series for revision in one.revisions}),
        len(series),
        lambda revision: _describe(repo, commits[revision]),
        site.revisions,
        found,
        _accepted(),
    )


def _negligible() -> dict[str, tuple[float, float]]:
    """The least change that each asv class cares for, as it says itself."""
    return {name: one.negligible for name, one, _ in asv_classes() if hasattr(one, "negligible")}


def _accepted() -> list[acceptance.Acceptance]:
    """Raises `UserError` with one line if the file of accepted regressions cannot be read."""
    try:
        return acceptance.in_checkout()
    except ClickException as error:
        raise UserError(error.message) from None


def _records(conf: Any) -> Path:
    return Path(conf.results_dir).parent / "records"


def _machines(directory: Path, graphs: Any) -> list[str]:
    """Those with records, and those with results only."""
    return sorted({*records.machines(directory), *(graph.params.get("machine", "") for _, graph in graphs)} - {""})


def _hardware(graphs: Any, machine: str) -> str:
    """Its GPU, or its CPU, as asv's machine file says."""
    for _, graph in graphs:
        if graph.params.get("machine") == machine:
            number, gpu = graph.params.get("num_gpu", ""), graph.params.get("gpu", "")
            return f"{number} \u00d7 {gpu}" if gpu and number not in ("", "1") else gpu or graph.params.get("cpu", "")
    return ""


def _collect(
    conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]
) -> tuple[list[attention_page.Measured], list[tuple[str, str]]]:
    """What each machine measured at its newest commit that is published, and the machines that have nothing."""
    site = _site(conf, repo, benchmarks, graphs, revisions)
    directory = site.directory
    measured: list[attention_page.Measured] = []
    silent: list[tuple[str, str]] = []
    for machine in _machines(directory, graphs):
        found = records.commits(directory, machine)
        commits = site.commits(machine)
        shown = [
            attention_page.Measured(
                machine,
                benchmark,
                _describe(repo, commit),
                results,
                frozenset(benchmarks),
                _history(graphs, benchmarks, benchmark, machine),
            )
            for benchmark, commit, results in _newest(directory, machine, commits)
        ]
        measured += shown
        if not found:
            silent.append((machine, "has no records yet."))
        elif not commits:
            silent.append((machine, "has records, but none of a commit that this site publishes."))
        elif not shown:
            silent.append((machine, "has records, but none of attention."))
    order = list(SECTIONS)
    return sorted(measured, key=lambda one: (order.index(one.benchmark), one.machine)), silent


def _site(conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> newest.Site:
    published = {commit for branch in conf.branches for commit in repo.get_branch_commits(branch)}
    return newest.Site(_records(conf), graphs, benchmarks, revisions, frozenset(published & revisions.keys()))


def _newest(directory: Path, machine: str, commits: list[str]) -> Iterator[tuple[str, str, list[records.CaseResult]]]:
    """For each benchmark that the page knows: the first of these commits that has results of it, and those."""
    wanted = set(SECTIONS)
    for commit in commits:
        by_benchmark: dict[str, list[records.CaseResult]] = {}
        for result in newest.read_commit(directory, machine, commit):
            if result.benchmark in wanted:
                by_benchmark.setdefault(result.benchmark, []).append(result)
        for benchmark, results in by_benchmark.items():
            wanted.remove(benchmark)
            yield benchmark, commit, results
        if not wanted:
            return


def _history(graphs: Any, benchmarks: Any, benchmark: str, machine: str) -> tuple[Series, ...]:
    section = SECTIONS[benchmark]
    found = benchmarks.get(f"{benchmark}.{section.method}")
    return tuple(series_of(graphs, found, machine, section.ours)) if found else ()


@functools.cache  # 4 ms, and the pages show the same commits
def _describe(repo: Any, commit: str) -> pages.Commit:
    """Subject and date from git. asv has no public way to ask for the subject."""
    when = datetime.fromtimestamp(repo.get_date(commit) / 1000, UTC)
    subject = repo._run_git(["log", "-1", "--format=%s", commit], dots=False).strip()
    return pages.Commit(commit, subject, f"{when:%Y-%m-%d}")
