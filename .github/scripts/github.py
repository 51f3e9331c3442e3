"""GitHub's REST API for the workflows, and the one way in which they refuse.

GitHub's answers are data: they are compared, never run, and never printed unchanged, because the runner takes a log
line that begins with `::` for a command. Reads GITHUB_API_URL, which every runner sets, and GH_TOKEN.
"""

import http.client
import itertools
import json
import os
import re
import urllib.error
import urllib.request
from typing import Any

NUMBER = re.compile(r"[1-9][0-9]{0,8}")
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}")
MAX_ANSWER = 64 * 2**20
TIMEOUT_S = 60


class RefusedError(Exception):
    """One line that says what was given and what is allowed."""


def api(path: str, *, method: str = "GET", body: Any = None) -> Any:
    """Send one request, with `body` as JSON, and return the JSON of the answer.

    Raises RefusedError if GitHub does not answer, or with an error.
    """
    answer = _request(path, MAX_ANSWER, method, None if body is None else json.dumps(body).encode())
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise RefusedError(f"{method} {shown(path)}: the answer is not JSON") from None


def download(path: str, limit: int) -> bytes:
    """Return the bytes at `path`, which GitHub may redirect. Raises RefusedError if there are more than `limit`."""
    return _request(path, limit, "GET", None)


def pull_request(repository: str, number: str, commit: str) -> dict[str, Any]:
    """Return GitHub's record of the pull request.

    Raises RefusedError unless it is open, targets main, and its newest commit is `commit`.
    """
    expect(REPOSITORY, repository, "repository", "owner/name")
    expect(NUMBER, number, "pull request", "a number")
    expect(COMMIT, commit, "commit", "40 hexadecimal digits")
    record: dict[str, Any] = api(f"repos/{repository}/pulls/{number}")
    if record["state"] != "open":
        raise RefusedError(f"pull request {number} is {shown(record['state'])}; allowed: open")
    if record["base"]["ref"] != "main":
        raise RefusedError(f"pull request {number} targets {shown(record['base']['ref'])}; allowed: main")
    if record["head"]["sha"] != commit:
        newest = shown(record["head"]["sha"])
        raise RefusedError(f"pull request {number} is at {newest}, not at {commit}: read that commit, then start again")
    return record


def ours(listing: str, marker: str) -> dict[str, Any] | None:
    """Return the first comment or issue that these workflows wrote and that begins with this marker.

    `listing` is a path that ends where another parameter may follow.
    """
    for page in itertools.count(1):
        entries = api(f"{listing}per_page=100&page={page}")
        if not entries:
            break
        for entry in entries:
            if (entry["user"] or {}).get("login") == "github-actions[bot]" and (entry["body"] or "").startswith(marker):
                return entry
    return None


def expect(pattern: re.Pattern[str], given: str, what: str, allowed: str) -> None:
    """Raise RefusedError unless the whole of `given` matches."""
    if not pattern.fullmatch(given):
        raise RefusedError(f"{what} {shown(given)} was given; allowed: {allowed}")


def shown(text: object) -> str:
    """Quote untrusted text for one line of a log: ASCII and short."""
    quoted = ascii(str(text)[:100])
    return quoted if len(str(text)) <= 100 else f"{quoted[:-1]}...'"


def _request(path: str, limit: int, method: str, body: bytes | None) -> bytes:
    request = urllib.request.Request(f"{os.environ['GITHUB_API_URL']}/{path}", body, method=method)
    request.add_header("Accept", "application/vnd.github+json")
    # Artifacts are redirected to a storage host, which must not see the token.
    request.add_unredirected_header("Authorization", f"Bearer {os.environ['GH_TOKEN']}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(limit + 1)
    except urllib.error.HTTPError as error:
        raise RefusedError(f"{method} {shown(path)}: HTTP {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise RefusedError(f"{method} {shown(path)}: {shown(error)}") from None
    if len(content) > limit:
        raise RefusedError(f"{shown(path)} is larger than {limit} bytes")
    return content
