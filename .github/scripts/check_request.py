"""Refuse a measurement unless the pull request is open, goes to main, and its newest commit is the one asked for.

Reads REPOSITORY, PULL_REQUEST and COMMIT; exit status 1 and one line if refused.
"""

import os
import sys

from github import RefusedError, pull_request


def main() -> None:
    """See the module."""
    number, commit = os.environ["PULL_REQUEST"], os.environ["COMMIT"]
    try:
        pull_request(os.environ["REPOSITORY"], number, commit)
    except RefusedError as refused:
        sys.exit(f"refused: {refused}")
    print(f"Pull request {number} is open and at {commit}.")


if __name__ == "__main__":
    main()
