"""The asv environment "linked": a venv that sees the installed torch and links to each commit's package.

Nothing is built or downloaded: the same configuration serves a laptop, a GPU image and a machine without a network, and
changing the commit takes milliseconds. The outer site-packages are appended as plain paths, so that no editable install
there can replace the checkout's own package by the working tree's.
"""

import atexit
import functools
import json
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from asv import environment, util
from asv.commands import make_argparser
from asv.console import log
from asv.machine import Machine, MachineCollection
from filelock import FileLock

from perf.harness.device import installed, machine
from perf.harness.lock import Busy, lock_checkout
from perf.harness.preflight import full_disks, objection
from perf.harness.records import read_machine
from perf.harness.suite import OPTIONS_VARIABLE, PROGRESS_VARIABLE, RECORDS_VARIABLE
from perf.machines import machine_file
from perf.workloads import PACKAGE

ENTRY = Path(__file__).parents[1] / "harness" / "workers" / "asv_process.py"
SERIES_REQUIREMENTS = ("torch", "triton")  # a new version of these starts a new series


class LinkedEnvironment(environment.Environment):
    """The environment that `"environment_type": "linked"` selects; see the module."""

    tool_name = "linked"
    matches_python_fallback = False

    def __init__(self, conf, python, requirements, tagged_env_vars):
        if not self.matches(python):
            raise environment.EnvironmentUnavailable(
                f"Python {python} was given; allowed: {_python()}, the one that runs asv (or 'same')"
            )
        versions = {name: version for name in SERIES_REQUIREMENTS if (version := installed(name))}
        # asv's base class reads the attribute for the directory's name.
        self._requirements = requirements = {**requirements, **versions}
        results = Path(conf.results_dir).resolve()
        self._records = results.parent / "records"
        if reason := objection(full_disks(results, self._records, Path(conf.env_dir))):
            raise util.UserError(reason)  # before asv writes a failure of every class
        _lock_checkout(Path(conf.env_dir))
        super().__init__(conf, _python(), requirements, tagged_env_vars)
        self._site = Path(sysconfig.get_path("purelib", "venv", {"base": self._path, "platbase": self._path}))

    @classmethod
    def matches(cls, python):
        """Match the Python that runs asv: no other has the installed torch."""
        return python in (_python(), "same")

    def check_presence(self):
        """Return whether the venv exists and links what this Python has; asv's own check requires pip."""
        linked = self._outer_paths_file()
        is_made = (Path(self._path) / "asv-env-info.json").is_file() and linked.is_file()
        return is_made and linked.read_text() == _outer_paths()

    def _setup(self):
        log.info(f"Linking {self.name} to the installed packages")
        util.check_call([sys.executable, "-m", "venv", "--without-pip", self._path])
        self._outer_paths_file().write_text(_outer_paths())

    def _outer_paths_file(self) -> Path:
        return self._site / "_outer_site_packages.pth"

    def _uninstall_project(self):
        self._set_installed_commit_hash(None)
        (self._site / PACKAGE).unlink(missing_ok=True)

    def _build_project(self, repo, commit_hash, build_dir):
        """Do nothing: the package is pure Python."""

    def _install_project(self, repo, commit_hash, build_dir):
        # A link to the repository's root would expose the commit's own perf/ too.
        source = Path(build_dir) / PACKAGE
        if source.is_dir():
            (self._site / PACKAGE).symlink_to(source)

    def run(self, args, **kwargs):
        """Run asv's script in the environment, which also names asv's command line, records and terminal."""
        env = dict(kwargs.pop("env", os.environ))
        given = _given()
        to_profile = given.get("benchmark")  # of `asv profile` alone
        patterns = to_profile or given.get("bench")
        bench = [patterns] if isinstance(patterns, str) else patterns  # `asv find` has one, `asv run` a list
        env[OPTIONS_VARIABLE] = json.dumps({"bench": bench, "quick": given.get("quick")})
        is_kept = not (to_profile or given.get("dry_run") or given.get("skip_save"))
        env[RECORDS_VARIABLE] = str(self._records) if is_kept else _scratch()
        _warn_of_damage(Path(env[RECORDS_VARIABLE]))
        env.setdefault(PROGRESS_VARIABLE, f"/proc/{os.getpid()}/fd/2")
        return self.run_executable("python", [str(ENTRY), *args], env=env, **kwargs)


@functools.cache
def _lock_checkout(folder: Path) -> FileLock:
    """Lock the checkout until the process ends: another run would check out another commit in the environments.

    Raises `UserError` with one line if another run has locked it.
    """
    try:
        return lock_checkout(folder)
    except Busy as error:
        raise util.UserError(error.message) from None


@functools.cache  # asv runs a process for each case
def _given() -> dict[str, Any]:
    """Return asv's options by its own parser, which reads several in one, as -eb and -qe are."""
    parser, _ = make_argparser()
    return vars(parser.parse_known_args(sys.argv[1:])[0])


@functools.cache
def _warn_of_damage(records: Path) -> None:
    """Name the damaged records, once a run: the processes that measure its classes would each do so."""
    for _ in read_machine(records, machine()["machine"], log.warning):
        pass


@functools.cache
def _scratch() -> str:
    """Return a folder until the process ends, for the records of a command whose results asv does not save."""
    folder = tempfile.TemporaryDirectory(prefix="perf-dry-run-")
    atexit.register(folder.cleanup)
    return folder.name


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _outer_paths() -> str:
    """Return the text of a .pth file with the folders of packages that this Python sees."""
    folders = (path for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    return "".join(f"{path}\n" for path in dict.fromkeys(folders) if Path(path).is_dir())


def _with_our_name(load):
    """Return asv's `Machine.load`, which refuses a name of asv's choice: results would lie apart from the records."""

    @functools.wraps(load.__func__)
    def loaded(cls, interactive=False, force_interactive=False, machine_name=None, **options):
        is_to_measure = interactive and not force_interactive
        if is_to_measure:  # asv would ask for a name of its own choice
            try:
                MachineCollection.load(machine_name or cls.get_unique_machine_name())
            except util.UserError as error:
                reason = str(error).rstrip(".")
                raise util.UserError(f"{reason}: `python -m perf machine` writes asv's machine file") from None
        found = load.__func__(cls, interactive, force_interactive, machine_name=machine_name, **options)
        if is_to_measure and not machine_name and found.machine != (here := machine()["machine"]):
            raise util.UserError(
                f"asv calls this machine {found.machine}, and its records {here}: run `python -m perf machine`, then "
                f"asv run --machine {here}"
            )
        return found

    return classmethod(loaded)


if not hasattr(Machine.load, "__wrapped__"):
    Machine.load = _with_our_name(Machine.load)

MachineCollection.get_machine_file_path = staticmethod(lambda: str(machine_file()))
