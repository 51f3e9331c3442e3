"""What the workflows ask of GitHub, through `gh`, and the one way in which they refuse.

Everything that comes back is data: it is compared, never run, and never printed as it came, since a line of a log that
begins with `::` is a command to the runner.
"""

import json
import re
import subprocess
from typing import Any

NUMBER = re.compile(r"[1-9][0-9]{0,8}")
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}")


class RefusedError(Exception):
    """One line that says what was given and what is allowed."""


def api(*arguments: str, body: Any = None) -> Any:
    """The answer of `gh api ...` as JSON; `body` is sent as JSON.

    Raises RefusedError if GitHub does not answer.
    """
    answer = _gh(*arguments, body=body)
    try:
        return json.loads(answer)
    except ValueError:
        raise RefusedError(f"gh api {shown(arguments[-1])}: the answer is not JSON") from None


def download(address: str, limit: int) -> bytes:
    """The bytes at an address of the API. Raises RefusedError if there are more than `limit`."""
    command = ["gh", "api", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as gh:
        assert gh.stdout is not None
        content = gh.stdout.read(limit + 1)
        if len(content) > limit:
            gh.kill()
            raise RefusedError(f"{shown(address)} is larger than {limit} bytes")
    if gh.returncode != 0:
        raise RefusedError(f"gh api {shown(address)}: exit status {gh.returncode}")
    return content


def pull_request(repository: str, number: str, commit: str) -> dict[str, Any]:
    """GitHub's own word on the pull request.

    Raises RefusedError unless it is open, goes to main, and its newest commit is `commit`.
    """
    expect(REPOSITORY, repository, "repository", "owner/name")
    expect(NUMBER, number, "pull request", "a number")
    expect(COMMIT, commit, "commit", "40 hexadecimal digits")
    found: dict[str, Any] = api(f"repos/{repository}/pulls/{number}")
    if found["state"] != "open":
        raise RefusedError(f"pull request {number} is {shown(found['state'])}; allowed: open")
    if found["base"]["ref"] != "main":
        raise RefusedError(f"pull request {number} goes to {shown(found['base']['ref'])}; allowed: main")
    if found["head"]["sha"] != commit:
        newest = shown(found["head"]["sha"])
        raise RefusedError(f"pull request {number} is at {newest}, not at {commit}: read that commit, then start again")
    return found


def ours(listing: str, marker: str) -> dict[str, Any] | None:
    """The first comment or issue that these workflows wrote with this marker on top.

    `listing` is an address that ends where another parameter may follow.
    """
    for page in api("--paginate", "--slurp", f"{listing}per_page=100"):
        for one in page:
            if one["user"]["login"] == "github-actions[bot]" and (one["body"] or "").startswith(marker):
                return one
    return None


def expect(pattern: re.Pattern[str], given: str, what: str, allowed: str) -> None:
    """Raise RefusedError unless the whole of `given` matches."""
    if not pattern.fullmatch(given):
        raise RefusedError(f"{what} {shown(given)} was given; allowed: {allowed}")


def shown(text: object) -> str:
    """Text of strangers in one harmless line of a log: ASCII, quoted, short."""
    quoted = ascii(str(text)[:100])
    return quoted if len(str(text)) <= 100 else f"{quoted[:-1]}...'"


def _gh(*arguments: str, body: Any) -> str:
    command = ["gh", "api", *arguments]
    text = None
    if body is not None:
        command += ["--input", "-"]
        text = json.dumps(body)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RefusedError(f"gh api {shown(arguments[-1])}: {shown(done.stderr.strip())}")
    return done.stdout
