"""What the names of commits mean, and the package of each in a folder of its own."""

import re
from pathlib import Path

import click
import pytest

from perf.gate import checkouts
from perf.gate.checkouts import WORKING_TREE, clone, export, resolve, working_tree
from perf.git import forget_the_caller, output
from perf.harness.measure import package_digest
from perf.harness.sources import Sources
from tests.throwaway import Repository


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(tmp_path / "repo")
    made.write_package(axis="[1]")
    monkeypatch.setattr(checkouts, "ROOT", made.folder)
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_commit_by_any_of_its_names(repository: Repository) -> None:
    commit = repository.commit("The <first> $(one)")
    repository.git("tag", "v1")
    for name in (commit, commit[:8], "HEAD", "main", "v1"):
        assert resolve(name) == resolve(commit)
    assert (resolve("HEAD").commit, resolve("HEAD").subject) == (commit, "The <first> $(one)")


def test_a_name_of_a_branch_and_a_tag_is_refused(repository: Repository) -> None:
    first = repository.commit("first")
    repository.git("tag", "main")
    repository.write_package(axis="[2]")
    second = repository.commit("second")
    repository.git("config", "core.warnAmbiguousRefs", "false")
    for name in ("main", "main^0"):
        with pytest.raises(click.ClickException, match=f"^{re.escape(repr(name))} was given, which is ambiguous"):
            resolve(name)
    assert (resolve("refs/heads/main").commit, resolve("tags/main").commit) == (second, first)


def test_signatures_that_a_user_has_git_show_are_no_part_of_a_commit(repository: Repository) -> None:
    repository.git("config", "log.showSignature", "true")
    header, _, message = repository.git("cat-file", "commit", repository.commit("signed")).partition("\n\n")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n -----END PGP SIGNATURE-----"
    (repository.folder / ".git" / "signed").write_text(f"{header}\n{signature}\n\n{message}\n")
    signed = repository.git("hash-object", "-t", "commit", "-w", ".git/signed")
    assert (resolve(signed).commit, resolve(signed).subject) == (signed, "signed")


def test_a_commit_that_cannot_be_read_is_not_taken_for_one_without_the_package(
    repository: Repository, tmp_path: Path
) -> None:
    arm = resolve(repository.commit("damaged"))
    tree = repository.git("rev-parse", "HEAD:cs336_systems")
    (repository.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(click.ClickException, match=r"Could not read|cannot be measured|unable to read"):
        export(arm, tmp_path / "out")


def test_no_commit_is_one_clear_line(repository: Repository) -> None:
    repository.commit("first")
    for name in ("nowhere", "--version", "-p", "HEAD~99", "", "a b", "main;ls", "HEAD..HEAD", "HEAD^!"):
        with pytest.raises(
            click.ClickException, match=f"^{re.escape(repr(name))} was given; allowed: a commit"
        ) as caught:
            resolve(name)
        assert "\n" not in caught.value.message


def test_only_the_package_is_exported_as_that_commit_had_it(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("first")
    (repository.folder / "cs336_systems" / "configs.py").write_text("SEQ_LENS = [2]\n")
    second = repository.commit("second")
    (repository.folder / "cs336_systems" / "configs.py").write_text("SEQ_LENS = [3]\n")
    for name, axis in ((first, "[1]"), (second, "[2]"), (WORKING_TREE, "[3]")):
        folder = tmp_path / name
        export(checkouts.Arm(name, ""), folder)
        assert names(folder) == [
            "cs336_systems/__init__.py",
            "cs336_systems/attention/__init__.py",
            "cs336_systems/attention/reference.py",
            "cs336_systems/configs.py",
        ]
        assert (folder / "cs336_systems" / "configs.py").read_text() == f"SEQ_LENS = {axis}\n"


def test_a_file_that_git_ignores_or_an_editor_keeps_is_no_change(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit("first")
    package = repository.folder / "cs336_systems"
    with (repository.folder / ".gitignore").open("a") as ignored:
        ignored.write("*.nsys-rep\n")
    (package / "trace.nsys-rep").write_text("large")
    (package / ".configs.py.swp").write_text("an editor's")
    for name in (commit, WORKING_TREE):
        export(checkouts.Arm(name, ""), tmp_path / name)
    assert not list((tmp_path / WORKING_TREE).rglob("*.nsys-rep"))
    committed, edited = (Sources(tmp_path / name / "cs336_systems").definitions for name in (commit, WORKING_TREE))
    assert {name: one.digest for name, one in committed.items()} == {name: one.digest for name, one in edited.items()}


def test_a_submodule_in_the_package_is_one_line(repository: Repository, tmp_path: Path) -> None:
    head = repository.commit("first")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},cs336_systems/vendor")
    repository.git("commit", "-q", "-m", "A submodule")
    for arm in (resolve("HEAD"), checkouts.working_tree()):
        with pytest.raises(click.ClickException, match="cs336_systems/vendor is a submodule"):
            export(arm, tmp_path / arm.commit)


def test_a_link_that_leads_nowhere_is_left_out(repository: Repository, tmp_path: Path) -> None:
    package = repository.folder / "cs336_systems"
    (package / ".#lock.py").symlink_to("me@host.1:9")
    export(checkouts.Arm(WORKING_TREE, ""), tmp_path / "tree")
    assert "cs336_systems/.#lock.py" not in names(tmp_path / "tree") + [str(path) for path in tmp_path.rglob(".#*")]
    Sources(package)
    assert package_digest(package) == package_digest(tmp_path / "tree" / "cs336_systems")


def test_a_commit_has_what_a_checkout_of_it_has(repository: Repository, tmp_path: Path) -> None:
    """Its own attributes, not those of the working tree, and what it leaves out of archives."""
    attributes = repository.folder / ".gitattributes"
    attributes.write_text("*.cu export-ignore\nconfigs.py text eol=crlf export-subst\n")
    (repository.folder / "cs336_systems" / "kernel.cu").write_text("code")
    (repository.folder / "cs336_systems" / "configs.py").write_text("A = '$Format:%H$'\n")
    arm = resolve(repository.commit("attributes"))
    attributes.write_text("*.cu eol=crlf\n")
    hook = repository.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook\n")
    hook.chmod(0o755)
    before = repository.git("status", "--porcelain")
    export(arm, tmp_path / "out")
    export(arm, tmp_path / "out", "perf/benchmarks")
    assert (tmp_path / "out" / "cs336_systems" / "kernel.cu").read_bytes() == b"code"
    assert (tmp_path / "out" / "cs336_systems" / "configs.py").read_bytes() == b"A = '$Format:%H$'\r\n"
    assert (tmp_path / "out" / "perf" / "benchmarks" / "smoke.py").exists()
    assert repository.git("status", "--porcelain") == before
    assert not (tmp_path / "hook").exists()


def test_the_repository_of_a_hook_is_not_the_one_that_is_read_or_cloned(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit("first")
    other = Repository(tmp_path / "other")
    other.write_package(axis="[2]")
    before = other.commit("of a hook")
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.folder))
    forget_the_caller()
    assert resolve("HEAD").commit == commit
    assert output(clone(resolve("HEAD"), tmp_path / "clone"), "rev-parse", "HEAD").strip() == commit
    assert other.git("rev-parse", "HEAD").strip() == before
    assert other.git("status", "--porcelain") == ""


def test_a_commit_without_the_package_is_an_empty_folder(repository: Repository, tmp_path: Path) -> None:
    repository.git("rm", "-r", "-q", "--cached", "--ignore-unmatch", "cs336_systems")
    repository.git("add", "asv.conf.json")
    repository.git("commit", "-q", "-m", "no package")
    export(resolve("HEAD"), tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_the_working_tree_says_whether_it_is_dirty(repository: Repository) -> None:
    repository.commit("first")
    assert working_tree() == checkouts.Arm(WORKING_TREE, "first")
    (repository.folder / "cs336_systems" / "new.py").write_text("")
    assert working_tree() == checkouts.Arm(WORKING_TREE, "uncommitted changes")


def test_no_path_differs_between_a_dirty_working_tree_and_itself(repository: Repository) -> None:
    repository.commit("first")
    (repository.folder / "pyproject.toml").write_text("")
    assert checkouts.changed_paths(resolve("HEAD"), working_tree()) == ("pyproject.toml",)
    assert checkouts.changed_paths(working_tree(), working_tree()) == ()


def test_tests_run_in_a_clone_that_leaves_the_repository_as_it_was(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("first")
    (repository.folder / "later.txt").write_text("")
    repository.commit("second")
    place = clone(resolve(first), tmp_path / "clone")
    assert (place / "asv.conf.json").exists()
    assert not (place / "later.txt").exists()
    assert repository.git("worktree", "list").count("\n") == 0
    assert clone(checkouts.Arm(WORKING_TREE, ""), tmp_path / "unused") == repository.folder
