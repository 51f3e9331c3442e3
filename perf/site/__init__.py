"""Results and records become pages, and the course's write-up.

Each page has a room of its name (`page.py` says what is on it, `page.html` where, `rows.py` its numbers): overview,
changes, attention, step, roofline, distributed, trust. `writeup` is `python -m perf report`. What several of them
read lies here: results and records (`loading`, `newest`, `gates`, `kept`, `left_out`), numbers (`estimate`, `ceiling`),
words (`wording`, `conditions`, `failures`), pictures (`axes`, `history`), and the site (`pages`, `offline`, `vendor`).
"""

from perf.site.loading import latest as latest
from perf.site.loading import load as load
