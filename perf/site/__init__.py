"""Results and records become pages.

Each page has a folder of its name (`page.py` says what is on it, `page.html` where, the other modules its numbers):
overview, changes, compare, attention, step, roofline, distributed, trust. What several of them read lies here: results
and records (`loading`, `newest`, `recorded`, `completed`, `gates`, `kept`, `left_out`), numbers (`estimate`,
`ceiling`), words (`wording`, `conditions`, `failures`), tables (`table`), pictures (`axes`, `sparkline`), and the site
(`pages`, `offline`, `vendor`).
"""

from perf.site.loading import latest as latest
from perf.site.loading import load as load
