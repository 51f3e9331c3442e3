"""Results and records become pages: the numbers of a page, its text, and a site that needs no other host."""

from perf.report.loading import load as load
