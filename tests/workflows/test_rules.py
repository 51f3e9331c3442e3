"""What every workflow keeps to, read off the YAML; and what GitHub's schema and zizmor say of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflows.running import ROOT, WORKFLOWS, load, triggers

NAMES = [path.name for path in WORKFLOWS]

IGNORED = {
    ("dangerous-triggers", "perf-comment.yml"): (
        "the comment needs a right that the job which ran the pull request's code must not have; this job runs nothing "
        "of the pull request, and takes its artifact as data"
    ),
    ("self-repository", "perf.yml"): (
        "a called workflow is that of the caller's own commit in either form, and GitHub Enterprise knows only this one"
    ),
}
"""Findings of zizmor's that stay, and why."""


def jobs(name):
    return load(name)["jobs"].items()


def steps():
    for name in NAMES:
        for job, definition in jobs(name):
            for index, step in enumerate(definition.get("steps", [])):
                yield pytest.param(step, id=f"{name}-{job}-{index}")


def on_our_machine(definition):
    return "self-hosted" in str(definition.get("runs-on"))


def tool(*command):
    scripts = Path(sys.executable).parent
    return subprocess.run([scripts / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_six_workflows_are_there():
    assert NAMES == ["perf-comment.yml", "perf-pr.yml", "perf.yml", "releases.yml", "site.yml", "tests.yml"]


def test_every_workflow_keeps_to_githubs_schema():
    done = tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_dependabot_keeps_to_its_schema():
    done = tool("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml")
    assert done.returncode == 0, done.stdout


def test_zizmor_finds_nothing_that_has_no_written_reason():
    done = tool(
        *("zizmor", "--pedantic", "--offline", "--no-progress", "--no-ignores", "--no-exit-codes"),
        *("--strict-collection", "--format", "json", ".github"),
    )
    assert done.returncode == 0, done.stderr
    found = {
        (finding["ident"], re.search(r"[\w-]+\.yml", json.dumps(location["symbolic"]["key"]))[0])
        for finding in json.loads(done.stdout)
        for location in finding["locations"]
    }
    assert found == set(IGNORED)


@pytest.mark.parametrize("name", NAMES)
def test_every_action_is_pinned_by_its_whole_hash_and_names_its_version(name):
    text = (ROOT / ".github" / "workflows" / name).read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        own = action == "./.github/workflows/site.yml"
        assert own or re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_one_action_has_one_hash():
    text = "".join(path.read_text() for path in WORKFLOWS)
    used = {tuple(action.split("@")) for action in re.findall(r"uses: (actions/.*)", text)}
    assert len(used) == len({action for action, _ in used})


@pytest.mark.parametrize("step", list(steps()))
def test_no_expression_is_in_a_script(step):
    assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("step", list(steps()))
def test_scripts_are_short(step):
    assert len(step.get("run", "").splitlines()) <= 8, "put it into .github/scripts, where it can be tested"


@pytest.mark.parametrize("step", list(steps()))
def test_credentials_stay_where_something_is_pushed_and_nowhere_else(step):
    if "actions/checkout" in step.get("uses", ""):
        pushes = step["with"].get("ssh-key") is not None
        assert step["with"]["persist-credentials"] is pushes


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_has_no_rights_and_every_job_asks_for_its_own(name):
    assert load(name)["permissions"] == {}
    for job, definition in jobs(name):
        assert "permissions" in definition, job
        assert "timeout-minutes" in definition or "uses" in definition, job


def test_no_job_has_more_rights_than_these():
    rights = {
        f"{name}:{job}": {right for right, level in definition["permissions"].items() if level == "write"}
        for name in NAMES
        for job, definition in jobs(name)
    }
    assert {job: write for job, write in rights.items() if write} == {
        "perf.yml:store": {"contents"},
        "perf.yml:issue": {"issues"},
        "perf.yml:site": {"pages", "id-token"},
        "site.yml:deploy": {"pages", "id-token"},
        "perf-comment.yml:comment": {"pull-requests"},
    }


def test_our_machine_has_no_right_and_no_secret():
    ours = [definition for name in NAMES for _, definition in jobs(name) if on_our_machine(definition)]
    assert len(ours) == 2
    for definition in ours:
        assert definition["permissions"] == {"contents": "read"}
        assert not re.search(r"\$\{\{[^}]*(secrets|github\.token)", json.dumps(definition))


def test_no_event_of_a_pull_request_reaches_our_machine():
    for name in NAMES:
        if any(on_our_machine(definition) for _, definition in jobs(name)):
            assert set(triggers(load(name))) <= {"push", "schedule", "workflow_dispatch"}
            assert triggers(load(name)).get("push", {}).get("branches", ["main"]) == ["main"]


def test_what_runs_with_rights_for_strangers_is_started_by_the_end_of_a_run_alone():
    assert set(triggers(load("perf-comment.yml"))) == {"workflow_run"}
    assert not [name for name in NAMES if "pull_request_target" in triggers(load(name))]


def test_what_runs_on_our_machine_is_of_main():
    """By its own condition or by that of a job it needs: a branch may hold any YAML."""
    for name in NAMES:
        definitions = dict(jobs(name))
        for definition in definitions.values():
            if on_our_machine(definition):
                first = definitions.get(definition.get("needs"), definition)
                assert "github.ref == 'refs/heads/main'" in first["if"]


def test_one_job_at_a_time_is_on_the_gpu_and_none_that_waits_is_dropped():
    groups = [definition["concurrency"] for name in NAMES for _, definition in jobs(name) if on_our_machine(definition)]
    assert groups == [{"group": "gpu", "cancel-in-progress": False, "queue": "max"}] * 2
    for name in ("perf.yml", "perf-pr.yml", "perf-comment.yml"):
        assert load(name)["concurrency"]["queue"] == "max"


def test_the_label_of_the_machine_is_a_variable_of_the_repository():
    for name in ("perf.yml", "perf-pr.yml"):
        (labels,) = (definition["runs-on"] for _, definition in jobs(name) if on_our_machine(definition))
        assert "vars.PERF_RUNNER_LABELS" in labels
        assert json.loads(re.search(r"'(\[.*\])'", labels)[1]) == ["self-hosted", "gpu", "h100"]


def test_an_approval_is_waited_for_before_the_gpu_is_taken():
    definitions = load("perf-pr.yml")["jobs"]
    assert definitions["check"]["environment"] == "perf-pr"
    assert "environment" not in definitions["gate"]


def test_a_push_of_results_does_not_start_the_measurement_that_made_them():
    assert triggers(load("perf.yml"))["push"]["paths-ignore"] == ["perf/results/**", "perf/records/**"]


def test_the_runner_page_names_what_has_to_be_set_and_how_long_it_may_take():
    page = (ROOT / "docs" / "runner.md").read_text()
    text = "".join(path.read_text() for path in WORKFLOWS)
    named = set(re.findall(r"\b(?:vars|secrets)\.([A-Z]\w+)", text)) | {name.removesuffix(".yml") for name in NAMES}
    for name in NAMES:
        for _, definition in jobs(name):
            environment = definition.get("environment", {"name": "perf"})
            named.add(environment if isinstance(environment, str) else environment["name"])
            if on_our_machine(definition):
                named.add(f"{definition['timeout-minutes']} minutes")
    assert [name for name in sorted(named) if name not in page] == []
