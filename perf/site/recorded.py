"""Read a commit's records for the pages, which need the same few commits."""

import functools

from perf.harness import records

read = functools.lru_cache(maxsize=64)(records.read)
