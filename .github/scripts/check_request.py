"""Refuse a measurement unless the pull request is open, targets main, and its newest commit is the requested one.

Reads REPOSITORY, PULL_REQUEST and COMMIT; exits with status 1 and one line if it refuses.
"""

import os
import sys

from github import RefusedError, pull_request


def main() -> None:
    """Look the pull request up."""
    number, commit = os.environ["PULL_REQUEST"], os.environ["COMMIT"]
    try:
        pull_request(os.environ["REPOSITORY"], number, commit)
    except RefusedError as refused:
        sys.exit(f"refused: {refused}")
    print(f"Pull request {number} is open and at {commit}.")


if __name__ == "__main__":
    main()
