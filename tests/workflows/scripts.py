"""Run the scripts of `.github/scripts` as the workflows do, beside a stand-in for GitHub's API."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from perf.gate import report as report_file
from tests.gate import reports as made
from tests.repositories import CONFIGURED_BY_NOBODY, git

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / ".github" / "scripts"
REPOSITORY = "owner/repository"
RUN_URL = f"https://github.com/{REPOSITORY}/actions/runs/99"

HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    "-x --output=pwned",
    "a && touch pwned | tee pwned > pwned",
    "line\ntouch pwned\n::set-output name=changed::false\n::error::it is over",
    "${{ github.token }}",
    "<img src=x onerror=alert(1)> @everyone [x](https://evil.example)",
]
"""Branch names, commit messages and inputs of an attacker."""


class GitHub:
    """An HTTP server with answers by method and address. Keeps every request that it gets."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}  # JSON; bytes as they are; a str is redirected to; an int is a status
        self.requests: list[tuple[str, str, Any]] = []
        self.tokens: list[str | None] = []
        github = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                github.requests.append((self.command, self.path, json.loads(body or b"null")))
                github.tokens.append(self.headers["Authorization"])
                answer = github.answers.get(f"{self.command} {self.path}", 404)
                status = answer if isinstance(answer, int) else 302 if isinstance(answer, str) else 200
                self.send_response(status)
                if isinstance(answer, str):
                    self.send_header("Location", answer)
                self.end_headers()
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            do_POST = do_PATCH = do_GET  # noqa: N815, http.server's names

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # shutdown waits for the next poll, by default 0.5 s
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, method: str, path: str, answer: Any) -> None:
        """Answer `path` of the repository."""
        self.answers[f"{method} /repos/{REPOSITORY}/{path}"] = answer

    def written(self) -> list[tuple[str, str, Any]]:
        return [request for request in self.requests if request[0] != "GET"]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def run(name: str, *arguments: Any, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a script with no package but Python's own, and no variable but the given ones."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8", **CONFIGURED_BY_NOBODY, **environment}
    command = [sys.executable, "-S", SCRIPTS / f"{name}.py", *arguments]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def assert_refused(done: "subprocess.CompletedProcess[str]", reason: str, cwd: Path) -> None:
    """The script ended with one line of ASCII, and ran nothing of what it was given."""
    assert done.returncode == 1
    assert done.stderr.startswith("refused: ")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.isascii()
    assert not list(cwd.rglob("pwned"))


def commit(folder: Path, message: str) -> str:
    """Commit all of `folder`, with another line of code, and return the hash."""
    with (folder / "code.txt").open("a") as code:
        code.write(f"{message}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def report(base: str, head: str) -> Any:
    """Return what `python -m perf gate --json` writes for one slower row, without samples."""
    key = "attention.FlashAttention.track_time(8192, 64, 'bfloat16', 'forward', 'triton')"
    row = made.verdict("SLOWER", key=key, base=1e-4, head=1.1e-4, change=0.1, low=0.09, high=0.11)
    arms = {"base": {"commit": base, "subject": "Before"}, "head": {"commit": head, "subject": "After"}}
    return json.loads(report_file.to_json(made.report(row, **arms)))


def changed(document: Any, *path: Any, to: Any) -> Any:
    """Return `document` with the value at `path` replaced."""
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    return document
