"""asv publishers: the site works without the internet, and has our pages, a class each.

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

from perf.asv_plugins import averaged, checked, disk
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

averaged.install()
checked.install()
disk.install()

LINKS = [link for link in pages.PAGES if not link[0].startswith(offline.HISTORY)]
"""Those that asv's page, which is the history, has not."""


class Pages:
    """What our publishers share. No publisher itself, for asv calls every one of them."""

    name: str
    collect: Callable[[Site, str], Any]
    """What a machine has measured, from what asv publishes."""

    render: Callable[[str, list[Any], str], str]
    """The page, of the project's name, what `collect` gave for each machine, and conf's show_commit_url."""

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
        """The HTML of each page by its name: of this one."""
        found = [cls.collect(site, machine) for machine in site.machines]
        return {cls.name: cls.render(conf.project, found, conf.show_commit_url)}


class OverviewSite(Pages, OutputPublisher):
    """index.html and changes.html: what every machine measures, and what became of it."""

    name = "overview"
    button_label = "Overview"
    description = "What is measured, up to which commit, and the newest verdicts"
    order = 9

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """Both from one look for changes, which takes the longest."""
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
    """compare.html, and beside it a file for each commit that it compares."""

    name = "compare"
    button_label = "Compare"
    description = "Any two measured commits, row by row"
    order = 9.5

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """The page, once its files are written."""
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
    """step.html: each phase of a training step, and the ways to run one."""

    name = "step"
    button_label = "Training step"
    description = "Where a training step's time and memory go, and what each way to run it takes"
    order = 11
    collect = staticmethod(step_page.collect)
    render = staticmethod(step_page.render)


class RooflineSite(Pages, OutputPublisher):
    """roofline.html: every case against what its device was measured to do at most."""

    name = "roofline"
    button_label = "Roofline"
    description = "What fraction of the measured ceiling each case reaches, and how that went"
    order = 11.3
    collect = staticmethod(roofline_page.collect)
    render = staticmethod(roofline_page.render)


class DistributedSite(Pages, OutputPublisher):
    """distributed.html: strategies, bucket sizes, collectives and sharding over several ranks."""

    name = "distributed"
    button_label = "Distributed"
    description = "What communication adds to a step, by which buckets, and what sharding saves"
    order = 11.6
    collect = staticmethod(distributed_page.collect)
    render = staticmethod(distributed_page.render)


class TrustSite(Pages, OutputPublisher):
    """trust.html: what the gate's self-tests on file say, machine by machine."""

    name = "trust"
    button_label = "Trust"
    description = "How far the gate's verdicts may be believed: false alarms, planted slow-downs found"
    order = 12

    @classmethod
    def rendered(cls, conf: Any, site: Site) -> dict[str, str]:
        """Of every self-test; of the finder of changes, what its simulation says."""
        found = [
            trust_page.Machine(
                name, *trust_records.read(site.directory, name), trust_records.drawn(site.directory, name)
            )
            for name in site.machines
        ]
        accepted, finder = _accepted(), change_rates.kept()
        return {cls.name: trust_page.render(conf.project, found, _negligible(), finder, conf.show_commit_url, accepted)}


def _refuse_half_a_history(repo: Any, results: Path, published: set[str]) -> None:
    """A shallow clone lacks measured commits, and its site would say that nothing was measured and nothing is worse."""
    measured = {path.name.partition("-")[0] for path in results.glob("*/*-*.json")}
    missing = measured - {commit[:8] for commit in published}  # as asv names its files
    if missing and repo._run_git(["rev-parse", "--is-shallow-repository"]).strip() == "true":
        raise UserError(
            f"this clone is shallow: {len(missing)} of {len(measured)} measured commits are not in it. "
            "git fetch --unshallow gets them; then publish again"
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


@functools.cache  # 4 ms, and the pages show the same commits
def _describe(repo: Any, commit: str) -> pages.Commit:
    """Subject and date from git. asv has no public way to ask for the subject."""
    when = datetime.fromtimestamp(repo.get_date(commit) / 1000, UTC)
    subject = shortened(repo._run_git(["log", "-1", "--format=%s", commit], dots=False))
    return pages.Commit(commit, subject, f"{when:%Y-%m-%d}")
