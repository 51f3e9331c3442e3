"""asv's benchmark directory: the classes whose series are measured, and nothing else.

asv puts the parent folder on `sys.path` and imports this package as `benchmarks`, so a series is named
`attention.FlashAttention`. The parent folder is the package `perf`, which asv leaves unimportable: it is imported from
its place here, without putting the repository's root, and with it the working tree's `cs336_systems`, on the path.

asv imports every module below here for every commit: none imports torch or the measured package.
"""

import importlib.util
import sys
from pathlib import Path

if "perf" not in sys.modules:
    _folder = Path(__file__).resolve().parents[1]
    _spec = importlib.util.spec_from_file_location(
        "perf", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    assert _spec is not None and _spec.loader is not None
    sys.modules["perf"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["perf"])
