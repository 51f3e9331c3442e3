"""asv publishers of our pages, a class each. The site needs no internet.

Named in asv.conf.json's `plugins`; `asv publish` then calls every subclass of `OutputPublisher` defined here.
"""

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv.publishing import OutputPublisher
from asv.util import UserError
from click import ClickException

from perf.asv_plugins import checked, disk, graphs
from perf.gate import acceptance
from perf.printable import shortened
from perf.selection import asv_classes
from perf.site import gates, left_out, offline, pages
from perf.site.attention import collected as attention
from perf.site.attention import page as attention_page
from perf.site.changes import page as change_page
from perf.site.changes import rates as change_rates
from perf.site.compare import page as compare_page
from perf.site.compare import rows as compare_rows
from perf.site.distributed import page as distributed_page
from perf.site.newest import Site
from perf.site.overview import page as overview_page
from perf.site.overview import rows as overview_rows
from perf.site.overview import speedups
from perf.site.roofline import page as roofline_page
from perf.site.step import page as step_page
from perf.site.trust import page as trust_page
from perf.site.trust import records as trust_records

checked.install()
disk.install()
graphs.install()

LINKS = [link for link in pages.PAGES if not link[0].startswith(offline.HISTORY)]
"""Links that asv's own page, the history, lacks."""


class Pages:
    """Base of our publishers. Not a publisher itself, since asv calls each of them."""

    name: str
    collect: Callable[[Site, str], Any]
    """Collects a machine's measurements."""

    render: Callable[[str, list[Any], str], str]
    """Renders the page from the project's name, the collected machines and conf's show_commit_url."""

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Called by `asv publish`. Raises `UserError` if asv's page is none that we know, or the clone is shallow."""
        branches = [list(repo.get_branch_commits(branch)) for branch in conf.branches]  # newest first
        published = {commit for branch in branches for commit in branch}
        _refuse_half_a_history(repo, Path(conf.results_dir), published)
        site = Site(
            Path(conf.results_dir).parent / "records",
            graphs,
            benchmarks,
            revisions,
            frozenset(published & revisions.keys()),
            functools.partial(_describe, repo),
            {commit: number for branch in branches[:1] for number, commit in enumerate(branch)},
            lambda commits: repo.get_revisions(set(commits)),
        )
        html_dir = Path(conf.html_dir)
        try:
            offline.adopt(html_dir, LINKS, benchmarks)
            for name, page in cls.rendered(conf, site).items():
                offline.replace_text(html_dir / pages.file(name), page)
        except offline.UnknownPage as error:
            raise UserError(str(error)) from None

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """Return the HTML of each page by name."""
        found = [cls.collect(site, machine) for machine in site.machines]
        return {cls.name: cls.render(conf.project, found, conf.show_commit_url)}


class OverviewSite(Pages, OutputPublisher):
    """index.html and changes.html: measurements of every machine and their changes."""

    name = "overview"
    button_label = "Overview"
    description = "Measured cases and commits, and the newest verdicts"
    order = 9

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """Render both pages from one search for changes, the slowest part."""
        about = {name: (one.__doc__ or "").partition("\n")[0].replace("`", "") for name, one, _ in asv_classes() if one}
        machines = []
        for name in site.machines:
            measured = [
                overview_page.Measured(
                    one, about.get(one.benchmark, ""), site.describe(site.hashes[max(one.revisions)])
                )
                for one in overview_rows.classes_of(site.graphs, site.benchmarks, name)
            ]
            found, skipped = gates.read(site.directory, name)
            skipped += left_out.left_out(Path(conf.results_dir) / name, site.published)
            skipped += left_out.unreadable(site.directory, name)
            comparable = frozenset(compare_rows.recorded(site, name)[: compare_rows.MOST])
            changed = change_page.collect(site, name, found, _negligible(), _accepted(), comparable)
            last = max((max(one.row.revisions) for one in measured), default=None)
            newer = None if last is None else site.newer.get(site.hashes[last])
            hardware = site.hardware(name)
            picture = speedups.picture(attention.collect(site, name).measured)
            machines.append(overview_page.Machine(name, hardware, measured, found, skipped, changed, newer, picture))
        machines.sort(key=lambda one: -one.cells)
        changes = [one.changed for one in machines]
        return {
            "overview": overview_page.render(conf.project, machines, conf.show_commit_url),
            "changes": change_page.render(conf.project, changes, conf.show_commit_url),
        }


class CompareSite(Pages, OutputPublisher):
    """compare.html and a data file for each comparable commit."""

    name = "compare"
    button_label = "Compare"
    description = "Any two measured commits, row by row"
    order = 9.5

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """Write the data files and render the page."""
        found = [compare_page.collect(site, name, Path(conf.html_dir)) for name in site.machines]
        return {cls.name: compare_page.render(conf.project, found, conf.show_commit_url)}


class AttentionSite(Pages, OutputPublisher):
    """attention.html."""

    name = "attention"
    button_label = "Attention"
    description = "Attention at the newest commit: times, ceilings and peers"
    order = 10
    collect = staticmethod(attention.collect)
    render = staticmethod(attention_page.render)


class StepSite(Pages, OutputPublisher):
    """step.html: phases and variants of a training step."""

    name = "step"
    button_label = "Training step"
    description = "Time and memory of a training step by phase, and the time of each variant"
    order = 11
    collect = staticmethod(step_page.collect)
    render = staticmethod(step_page.render)


class RooflineSite(Pages, OutputPublisher):
    """roofline.html: every case against the measured ceilings of its device."""

    name = "roofline"
    button_label = "Roofline"
    description = "Share of the measured ceiling of each case, and its history"
    order = 11.3
    collect = staticmethod(roofline_page.collect)
    render = staticmethod(roofline_page.render)


class DistributedSite(Pages, OutputPublisher):
    """distributed.html: strategies, bucket sizes, collectives and sharding over several ranks."""

    name = "distributed"
    button_label = "Distributed"
    description = "Exposed communication, bucket sizes and sharded optimizer states"
    order = 11.6
    collect = staticmethod(distributed_page.collect)
    render = staticmethod(distributed_page.render)


class TrustSite(Pages, OutputPublisher):
    """trust.html: the gate's self-tests on file, by machine."""

    name = "trust"
    button_label = "Trust"
    description = "Error rates of the gate's verdicts: false alarms, detected slow-downs"
    order = 12

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """Render the self-tests and the simulated error rates of the change detector."""
        found = [
            trust_page.Machine(
                name, *trust_records.read(site.directory, name), trust_records.drawn(site.directory, name)
            )
            for name in site.machines
        ]
        accepted, finder = _accepted(), change_rates.kept()
        return {cls.name: trust_page.render(conf.project, found, _negligible(), finder, conf.show_commit_url, accepted)}


def _refuse_half_a_history(repo: Any, results: Path, published: set[str]) -> None:
    """Refuse a shallow clone: without its commits the site would show no measurement and no regression."""
    measured = {path.name.partition("-")[0] for path in results.glob("*/*-*.json")}
    missing = measured - {commit[:8] for commit in published}  # as asv names its files
    if missing and repo._run_git(["rev-parse", "--is-shallow-repository"]).strip() == "true":
        raise UserError(
            f"this clone is shallow: {len(missing)} of {len(measured)} measured commits are not in it. "
            "git fetch --unshallow gets them; then publish again"
        )


def _negligible() -> dict[str, tuple[float, float]]:
    """Return the negligible change of each asv class."""
    return {name: one.negligible for name, one, _ in asv_classes() if hasattr(one, "negligible")}


def _accepted() -> list[acceptance.Acceptance]:
    """Load accepted regressions. Raises `UserError` with one line if the file is unreadable."""
    try:
        return acceptance.in_checkout()
    except ClickException as error:
        raise UserError(error.message) from None


@functools.cache  # 4 ms, and the pages show the same commits
def _describe(repo: Any, commit: str) -> pages.Commit:
    """Subject and date from git. asv has no public way to ask for the subject."""
    when = datetime.fromtimestamp(repo.get_date(commit) / 1000, UTC)
    subject = shortened(repo._run_git(["log", "-1", "--format=%s", commit], dots=False))
    return pages.Commit(commit, subject, f"{when:%Y-%m-%d}")
