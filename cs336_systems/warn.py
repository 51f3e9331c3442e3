"""Private parts of torch and triton, each with what it buys and the plain way that stands in where it is gone.

No other module of this package touches them. Tested with torch 2.11 to 2.15 and triton 3.6 to 3.9. Where another
release lacks one, or answers otherwise, the plain way is taken with one warning: same results, longer calls.
"""

import functools
import warnings


@functools.cache
def warn_once(missing: str, instead: str) -> None:
    """Say what this release of torch or triton lacks and what is done instead, once for each `missing`."""
    warnings.warn(f"{missing} is gone or has changed: {instead}", RuntimeWarning, stacklevel=3)
