"""asv's publisher of the site; importing this module installs our wrappers of asv.

asv.conf.json names it in `plugins`: asv alone imports it, and `asv publish` calls every `OutputPublisher` there is.
"""

import functools
import importlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv.console import log
from asv.publishing import OutputPublisher
from asv.util import UserError

from perf.asv_plugins import checked, commands, completed, disk, graphs
from perf.gate import acceptance
from perf.git import PLAIN_LOG
from perf.printable import shortened
from perf.selection import asv_classes
from perf.site import gates, left_out, offline, pages
from perf.site.attention import collected as attention
from perf.site.changes import page as change_page
from perf.site.changes import rates as change_rates
from perf.site.compare import page as compare_page
from perf.site.compare import rows as compare_rows
from perf.site.newest import Site
from perf.site.overview import page as overview_page
from perf.site.overview import rows as overview_rows
from perf.site.overview import speedups
from perf.site.trust import mutations as trust_mutations
from perf.site.trust import page as trust_page
from perf.site.trust import records as trust_records

checked.install()
commands.install()
completed.install()
disk.install()
graphs.install()

LINKS = [(page.file, page.label) for page in pages.PAGES if not page.file.startswith(offline.HISTORY)]
"""Links that asv's own page, the history, lacks."""

Rendered = dict[str, str]
"""HTML by the page's name."""


class SitePages(OutputPublisher):
    """All pages but the history, which is asv's own."""

    name = "site"
    button_label = "Overview"
    description = "Measured cases and commits, and the newest verdicts"
    order = 9  # after asv's own

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Write the pages, for `asv publish`. Raises `UserError` for an unknown page of asv's and a shallow clone."""
        branches = [list(repo.get_branch_commits(branch)) for branch in conf.branches]  # newest first
        published = {commit for branch in branches for commit in branch}
        _refuse_shallow_clone(repo, Path(conf.results_dir), published)
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
            for title, write in WRITERS.items():
                with log.indent():
                    log.info(title)
                for name, page in write(site, conf).items():
                    offline.replace_text(html_dir / pages.file(name), page)
        except offline.UnknownPage as error:
            raise UserError(str(error)) from None


def _overview_and_changes(site: Site, conf: Any) -> Rendered:
    """Render both pages from one search for changes, which takes the longest."""
    about = {name: (cls.__doc__ or "").partition("\n")[0].replace("`", "") for name, cls, _ in asv_classes() if cls}
    machines = []
    for name in site.machines:
        measured = overview_rows.classes_of(site.graphs, site.benchmarks, name)
        reports, skipped = gates.read(site.directory, name)
        skipped += left_out.left_out(Path(conf.results_dir) / name, site.published)
        skipped += left_out.unreadable(site.directory, name)
        comparable = frozenset(compare_rows.commits_of(site, name)[: compare_rows.MOST])
        changed = change_page.collect(site, name, reports, _negligible(), acceptance.in_checkout(), comparable)
        hardware = site.hardware(name)
        picture = speedups.picture(attention.collect(site, name).measured)
        failing = site.failing(name)
        machines.append(
            overview_page.MachineOverview(
                name, hardware, measured, reports, skipped, changed, about, site.newer, picture, failing
            )
        )
    changes = [machine.changed for machine in machines]
    return {
        "overview": overview_page.render(conf.project, machines, conf.show_commit_url),
        "changes": change_page.render(conf.project, changes, conf.show_commit_url),
    }


def _compare(site: Site, conf: Any) -> Rendered:
    """Write a file for each commit that can be compared, and render the page."""
    machines = [compare_page.collect(site, name, Path(conf.html_dir)) for name in site.machines]
    return {"compare": compare_page.render(conf.project, machines, conf.show_commit_url)}


def _trust(site: Site, conf: Any) -> Rendered:
    """Render the self-tests and the simulated error rates of the step detection."""
    machines = [_self_tests(site.directory, name) for name in site.machines]
    accepted, finder = acceptance.in_checkout(), change_rates.kept()
    page = trust_page.render(conf.project, machines, _negligible(), finder, conf.show_commit_url, accepted)
    return {"trust": page}


def _newest(name: str) -> Callable[[Site, Any], Rendered]:
    """Return the writer of a page about the newest measurements, from its module's `collect` and `render`."""
    module = importlib.import_module(f"perf.site.{name}.page")

    def write(site: Site, conf: Any) -> Rendered:
        machines = [module.collect(site, machine) for machine in site.machines]
        return {name: module.render(conf.project, machines, conf.show_commit_url)}

    return write


WRITERS: dict[str, Callable[[Site, Any], Rendered]] = {
    "overview, changes": _overview_and_changes,
    "compare": _compare,
    **{name: _newest(name) for name in (page.file.removesuffix(".html") for page in pages.PAGES if page.of_newest)},
    "trust": _trust,
}
"""Renders pages from what asv publishes and from its configuration."""


def _self_tests(directory: Path, machine: str) -> trust_page.MachineSelfTests:
    tests, skipped = trust_records.read(directory, machine)
    planted, more_skipped = trust_mutations.read(directory, machine)
    drawn = trust_records.drawn(directory, machine)
    return trust_page.MachineSelfTests(machine, tests, skipped + more_skipped, drawn, planted)


def _refuse_shallow_clone(repo: Any, results: Path, published: set[str]) -> None:
    """Raise `UserError` for a shallow clone that lacks measured commits: its site would show no regressions."""
    measured = {path.name.partition("-")[0] for path in results.glob("*/*-*.json")}
    missing = measured - {commit[:8] for commit in published}  # as asv names its files
    if missing and repo._run_git(["rev-parse", "--is-shallow-repository"]).strip() == "true":
        raise UserError(
            f"this clone is shallow: {len(missing)} of {len(measured)} measured commits are not in it. "
            "git fetch --unshallow gets them; then publish again"
        )


def _negligible() -> dict[str, tuple[float, float]]:
    """Return each asv class's own threshold of a negligible change."""
    return {name: cls.negligible for name, cls, _ in asv_classes() if hasattr(cls, "negligible")}


@functools.cache  # 4 ms, and the pages show the same commits
def _describe(repo: Any, commit: str) -> pages.Commit:
    """Return the commit's subject and date from git; asv has no public way to read the subject."""
    when = datetime.fromtimestamp(repo.get_date(commit) / 1000, UTC)
    subject = shortened(repo._run_git([*PLAIN_LOG, "log", "-1", "--format=%s", commit], dots=False))
    return pages.Commit(commit, subject, f"{when:%Y-%m-%d}")
