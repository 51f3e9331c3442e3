"""Rows on file: what a study may write, and what a file may hold."""

import json
import math
from pathlib import Path

import pytest

from perf import studies
from perf.studies import document
from perf.studies.on_file import loaded
from perf.studies.row_forms import FORMS, faults

GOOD = {"strategy": "naive", "world_size": 2, "equal_on_ranks": True, "difference": 1}
PAIR = {"size": "xl", "context": 512, "batch": 4, "ours": "a", "against": "b", "ours_s": [[1.0]], "status": "ok"}
RESULTS = Path(studies.__file__).parent / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_committed_row_is_what_its_study_would_write(path):
    assert not list(faults(path.stem, loaded(path)["rows"], whole=True))


def test_every_study_s_document_is_known_but_for_tables():
    committed = {path.stem for path in RESULTS.rglob("*.json")}
    assert committed - set(FORMS) == {"clock"}


@pytest.mark.parametrize(
    ("name", "row", "fault"),
    [
        ("ddp-equivalence", GOOD, None),
        ("ddp-equivalence", GOOD | {"more": [1]}, None),
        ("ddp-equivalence", GOOD | {"difference": True}, "difference is True; allowed: float"),
        ("ddp-equivalence", GOOD | {"world_size": 2.0}, "world_size is 2.0; allowed: positive int"),
        ("ddp-equivalence", GOOD | {"world_size": 0}, "world_size is 0; allowed: positive int"),
        ("ddp", {"bucket_size_mb": -1.0}, "bucket_size_mb is -1.0; allowed: positive float"),
        ("precision", {"error": "0.1"}, "error is '0.1'; allowed: float"),
        ("attention-grid", {"role": "peer"}, "role is 'peer'; allowed: Literal['ours', 'against']"),
        ("train-step", PAIR | {"ours_s": [1.0]}, "ours_s is [1.0]; allowed: list[list[float]]"),
        ("ddp", {"strategy": "zero"}, "strategy is 'zero'; allowed: Literal['naive', "),
        ("train-step", PAIR | {"size": "7B"}, "size is '7B'; allowed: Literal['tiny', "),
        ("overlap", {"strategy": "fully_sharded/torch"}, None),
        ("end-to-end", {"peak_bytes": None}, None),
        ("end-to-end", {"peak_bytes": "7"}, "peak_bytes is '7'; allowed: positive int | None"),
        ("checkpointing", {"predicted_bytes": 0}, "predicted_bytes is 0; allowed: positive int"),
        ("all-reduce", {"facts": {"bytes": "1"}}, "facts is {'bytes': '1'}"),
        ("a table", {"facts": 1}, None),
        ("train-step", PAIR | {"ours_s": [[1.0], []]}, "ours_s is [[1.0], []]; allowed: seconds above 0"),
        ("train-step", PAIR | {"ours_s": [], "status": "wrong"}, None),
        ("train-step", PAIR | {"ours_s": [[math.nan]]}, "ours_s is [[nan]]; allowed: seconds above 0"),
        ("all-reduce", {"samples_s": [0.0]}, "samples_s is [0.0]; allowed: seconds above 0"),
    ],
)
def test_a_field_of_another_type_is_told_where_the_file_is_read(tmp_path, name, row, fault):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"rows": [{}, row]}))
    if fault is None:
        assert loaded(path)["rows"][1] == row
    else:
        with pytest.raises(ValueError, match="row 1") as raised:
            loaded(path)
        assert fault in str(raised.value)


def test_a_study_writes_no_row_that_lacks_a_field(tmp_path):
    path = tmp_path / "ddp-equivalence.json"
    document.write(path, {"rows": [GOOD]})
    lacking = {name: value for name, value in GOOD.items() if name != "difference"}
    with pytest.raises(AssertionError, match="row 0: difference is missing"):
        document.write(path, {"rows": [lacking]})
    assert json.loads(path.read_text())["rows"] == [GOOD]
