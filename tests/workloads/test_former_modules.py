"""Names that have moved are found in older commits too."""

import pytest

from perf.workloads import FORMER_MODULES, importing, measured
from perf.workloads.workload import Unavailable


@pytest.mark.parametrize("new", FORMER_MODULES)
def test_a_moved_name_is_found_in_this_commit_and_in_its_former_module(new, tmp_path, monkeypatch):
    module, _, name = new.rpartition(".")
    assert measured(module, name).__module__ == f"cs336_systems.{module}"

    old_package = f"old_{name}"
    former = tmp_path / old_package / f"{FORMER_MODULES[new].replace('.', '/')}.py"
    former.parent.mkdir(parents=True)
    former.write_text(f"{name} = 'of the old commit'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with importing(old_package):
        assert measured(module, name) == "of the old commit"
        with pytest.raises(Unavailable, match=r"accounting\.peak"):
            measured("accounting.peak", "peak_step_bytes")
