"""Rules of the workflows' YAML. check-jsonschema and zizmor check its form; the other tests hold what only we know."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from perf.__main__ import main as perf
from tests.workflows.scripts import ROOT, SCRIPTS

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
JOBS = {
    f"{name}:{job}": definition for name, workflow in WORKFLOWS.items() for job, definition in workflow["jobs"].items()
}
STEPS = [(job, step) for job, definition in JOBS.items() for step in definition.get("steps", [])]
OURS = {job: definition for job, definition in JOBS.items() if "self-hosted" in str(definition.get("runs-on"))}


def triggers(name):
    return WORKFLOWS[name][True]  # YAML reads the key `on` as true


def step(job, text):
    """Return the position and the step of a job whose action or command contains `text`."""
    steps = enumerate(JOBS[job]["steps"])
    return next((number, step) for number, step in steps if text in step.get("uses", step.get("run", "")))


CHECKS = {
    "schema": ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *FOLDER.glob("*.yml")),
    "dependabot": ("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml"),
    "zizmor": ("zizmor", "--pedantic", "--offline", "--no-progress", "--strict-collection", ".github"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_tools_find_nothing(check):
    """A finding of zizmor's that stays is ignored in its line, with the reason. zizmor has every action pinned."""
    program, *arguments = CHECKS[check]
    command = [Path(sys.executable).parent / program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_action_is_githubs_own_pinned_by_one_hash():
    used = {step["uses"] for _, step in STEPS if "uses" in step}
    assert all(re.fullmatch("actions/[a-z-]+@[0-9a-f]{40}", action) for action in used), used
    assert len({action.partition("@")[0] for action in used}) == len(used)


def test_no_script_holds_an_expression():
    assert not [job for job, step in STEPS if "${{" in step.get("run", "")]


def test_no_job_has_more_rights_than_these():
    assert all(workflow["permissions"] == {} for workflow in WORKFLOWS.values())
    rights = {job: definition["permissions"].items() for job, definition in JOBS.items()}
    write = {job: {name for name, level in granted if level != "read"} for job, granted in rights.items()}
    assert {job: names for job, names in write.items() if names} == {
        "perf.yml:store": {"contents"},
        "perf.yml:issue": {"issues"},
        "perf.yml:site": {"pages", "id-token"},
        "site.yml:deploy": {"pages", "id-token"},
        "perf-comment.yml:comment": {"pull-requests"},
    }


def test_only_the_job_that_pushes_keeps_credentials():
    kept = {job for job, step in STEPS if step.get("with", {}).get("persist-credentials") is True}
    refused = {job for job, step in STEPS if step.get("with", {}).get("persist-credentials") is False}
    assert kept == {"perf.yml:store"}
    assert refused | kept == {job for job, step in STEPS if "actions/checkout" in step.get("uses", "")}


def test_every_job_ends_in_time():
    assert [job for job, definition in JOBS.items() if not {"timeout-minutes", "uses"} & definition.keys()] == []


def test_our_machine_has_no_right_and_no_secret():
    assert set(OURS) == {"perf.yml:measure", "perf-pr.yml:gate"}
    for definition in OURS.values():
        assert definition["permissions"] == {"contents": "read"}
        assert not re.search(r"\$\{\{[^}]*(secrets|github\.token)", json.dumps(definition))


def test_our_machine_runs_workflows_of_main_only():
    """A branch can hold any YAML, so the condition stands in the job itself or in the one that it needs."""
    for job, definition in OURS.items():
        name = job.partition(":")[0]
        assert set(triggers(name)) <= {"push", "schedule", "workflow_dispatch"}
        assert (triggers(name).get("push") or {"branches": ["main"]})["branches"] == ["main"]
        first = JOBS.get(f"{name}:{definition.get('needs')}", definition)
        assert "github.ref == 'refs/heads/main'" in first["if"]


def test_no_event_of_a_stranger_starts_a_job_with_rights():
    """perf-comment.yml alone follows a stranger's event: the end of a run of main's own perf-pr.yml."""
    assert not [name for name in WORKFLOWS if "pull_request_target" in triggers(name)]
    assert set(triggers("perf-comment.yml")) == {"workflow_run"}
    assert all("workflow_run" not in triggers(name) for name in WORKFLOWS if name != "perf-comment.yml")
    condition = " ".join(JOBS["perf-comment.yml:comment"]["if"].split())
    assert set(condition.split(" && ")) == {
        "github.event.workflow_run.path == '.github/workflows/perf-pr.yml'",
        "github.event.workflow_run.event == 'workflow_dispatch'",
        "github.event.workflow_run.head_branch == 'main'",
        "github.event.workflow_run.head_repository.full_name == github.repository",
    }
    assert not [step for job, step in STEPS if job == "perf-comment.yml:comment" and "ref" in step.get("with", {})]


def test_one_job_at_a_time_is_on_the_gpu_and_none_that_waits_is_dropped():
    groups = [definition["concurrency"] for definition in OURS.values()]
    assert groups == [{"group": "gpu", "cancel-in-progress": False, "queue": "max"}] * 2
    for name in ("perf.yml", "perf-pr.yml", "perf-comment.yml"):
        assert WORKFLOWS[name]["concurrency"]["queue"] == "max"
        assert WORKFLOWS[name]["concurrency"]["cancel-in-progress"] is False


def test_an_approval_is_waited_for_before_the_gpu_is_taken():
    assert JOBS["perf-pr.yml:check"]["environment"] == "perf-pr"
    assert (JOBS["perf-pr.yml:gate"]["needs"], "environment" in JOBS["perf-pr.yml:gate"]) == ("check", False)


def test_a_push_of_results_does_not_start_the_measurement_that_made_them():
    assert triggers("perf.yml")["push"]["paths-ignore"] == ["perf/results/**", "perf/records/**"]


def test_main_is_measured_after_its_tests_and_a_failed_part_costs_no_other():
    tests, step_of_tests = step("perf.yml:measure", "pytest")
    assert (step_of_tests["id"], "if" in step_of_tests) == ("tests", False)
    parts = ("history", "gate", "self-test", "mutations", "newest")
    measuring = [step("perf.yml:measure", f"measure.py {part}") for part in parts]
    assert all(number > tests for number, _ in measuring)
    assert "if" not in measuring[0][1]
    night = "steps.tests.outcome == 'success' && (github.event_name == 'schedule' || inputs.full)"
    assert {step["if"] for _, step in measuring[1:]} == {f"${{{{ !cancelled() && {night} }}}}"}


def test_the_finished_results_are_stored_and_published_even_if_a_part_failed():
    number, collect = step("perf.yml:measure", "results.py collect")
    assert (collect["id"], collect["if"]) == ("collect", "always()")
    assert number > step("perf.yml:measure", "measure.py newest")[0]
    _, upload = step("perf.yml:measure", "upload-artifact")
    assert upload["if"] == "always() && steps.collect.outputs.changed == 'true'"
    assert JOBS["perf.yml:store"]["if"] == "always() && needs.measure.outputs.changed == 'true'"
    for job in ("perf.yml:issue", "perf.yml:site"):
        assert (JOBS[job]["needs"], JOBS[job]["if"]) == ("store", "always() && needs.store.result == 'success'")


def test_an_aborted_run_goes_on_at_the_newest_commit_of_main():
    options = step("perf.yml:measure", "actions/checkout")[1]["with"]
    assert (options["ref"], options["clean"], options["fetch-depth"]) == ("main", False, 0)


def test_every_verdict_is_kept():
    _, upload = step("perf-pr.yml:gate", "upload-artifact")
    assert upload["if"] == "${{ !cancelled() }}"
    assert upload["with"]["path"].count("/report/") == 2


def test_a_script_gets_every_variable_that_it_reads():
    ran = set()
    for job, step in STEPS:
        for name in re.findall(r"\.github/scripts/(\w+)\.py", step.get("run", "")):
            text = (SCRIPTS / f"{name}.py").read_text()
            text += (SCRIPTS / "github.py").read_text() if re.search("import.* (api|pull_request)", text) else ""
            read = set(re.findall(r'os\.environ\["(\w+)"\]', text.replace("'", '"'))) - {"GITHUB_API_URL"}
            assert read <= set(step.get("env", {})), (job, name)
            ran.add(name)
    assert ran == {"check_request", "gate_pull_request", "measure", "open_issue", "post_comment", "results"}


def test_the_run_names_itself_as_the_comment_reads_it():
    title = re.search(r'TITLE = re.compile\(r"(.*)"\)', (SCRIPTS / "post_comment.py").read_text())[1]
    name = WORKFLOWS["perf-pr.yml"]["run-name"]
    given = name.replace("${{ inputs.pull_request }}", "7").replace("${{ inputs.commit }}", "c" * 40)
    assert re.fullmatch(title, given).groups() == ("7", "c" * 40)


def test_the_gate_knows_the_sets_that_the_workflow_offers():
    (sets,) = (option for option in perf.get_command(click.Context(perf), "gate").params if "--set" in option.opts)
    assert set(triggers("perf-pr.yml")["workflow_dispatch"]["inputs"]["set"]["options"]) <= set(sets.type.choices)


def test_the_runner_page_names_every_setting():
    page = (ROOT / "docs" / "runner.md").read_text()
    named = set(re.findall(r"\b(?:vars|secrets)\.([A-Z]\w+)", "".join(path.read_text() for path in FOLDER.glob("*"))))
    environments = [definition["environment"] for definition in JOBS.values() if "environment" in definition]
    named |= {environment if isinstance(environment, str) else environment["name"] for environment in environments}
    assert [name for name in named if name not in page] == []
