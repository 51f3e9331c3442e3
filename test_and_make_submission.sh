#!/usr/bin/env bash
# The course's name of it: tests, then .asv/report/writeup.pdf and .asv/report/code.zip.
set -euo pipefail
cd "$(dirname "$0")"
exec python -m perf report --bundle "$@"
