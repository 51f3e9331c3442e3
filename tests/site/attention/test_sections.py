"""Each kind of class has its kind of section: many cases, a few, one, memory alone, the first call."""

import re
from pathlib import Path
from typing import get_args

import pytest

from perf.harness.case import ClockName
from perf.selection import asv_classes
from perf.site.attention.catalogue import SECTIONS
from perf.site.attention.collected import MachineAttention, Measured
from perf.site.attention.page import _headline, render
from perf.site.attention.rows import Overview
from perf.site.conditions import CLOCKS
from perf.site.estimate import Ratio
from tests.site import synthetic
from tests.site.attention.made_up import measured, page_of
from tests.site.pages import text_of
from tests.site.synthetic import H200


def heads(page: str) -> list[str]:
    """Columns of the table of every case."""
    [table] = re.findall(r'<table class="cases">.*?</table>', page, flags=re.DOTALL)
    return [text_of(head) for head in re.findall(r'<th scope="col".*?</th>', table)]


def test_every_class_of_attention_has_a_section_and_its_implementations_have_names() -> None:
    known = 0
    for name, cls, _ in asv_classes():
        if cls is None or not getattr(cls, "workload", "").startswith("attention"):
            continue
        benchmark = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        impls = cls.params[cls.param_names.index("impl")]
        assert benchmark in SECTIONS, f"{name}: say in attention.catalogue what {benchmark} is"
        assert SECTIONS[benchmark].ours in impls
        assert hasattr(cls, SECTIONS[benchmark].method), "a class without a time says memory"
        known += 1
    assert known


def test_many_cases_have_maps_and_what_never_varies_is_said_once(tmp_path: Path) -> None:
    page = page_of(synthetic.MANY_HEADS, tmp_path)
    text = text_of(page)
    assert text.count("tokens 32768, d_model 2048, bfloat16") == 1
    assert heads(page)[:5] == ["seq_len", "d", "is_causal", "mode", "time"]
    captions = re.findall(r"<caption>(.*?)</caption>", page)
    assert set(captions) == {f"{mode}, {mask}" for mode in ("forward", "backward") for mask in ("causal", "no mask")}
    assert re.search(r"1\.18\u00d7 ± [\d.]+ % as fast as SDPA flash", text)
    [table] = re.findall(r'<table class="cases">.*?</table>', page, flags=re.DOTALL)
    [first, *_] = re.findall(r"<tr><th scope=\"row\".*?</tr>", table, flags=re.DOTALL)
    assert re.search(r"\d\u00d7 ± [\d.]+ %", text_of(first)), "each speed-up with its interval"


def test_a_class_without_a_time_shows_memory_beside_its_peers(tmp_path: Path) -> None:
    page = page_of(synthetic.SAVED, tmp_path)
    assert heads(page) == ["seq_len", "d", "memory", "\u00d7 eager PyTorch"]
    assert "4096 16 64.0 MiB 2.00\u00d7" in text_of(page)
    assert "track_peak_memory" in page and "track_time" not in page


def test_a_ratio_of_memory_that_rounds_to_one_is_no_ratio() -> None:
    one, two = (Overview(9, Ratio(ratio, 0.01), ratio, ratio, 0, 0) for ratio in (1.004, 2.0))
    overviews = {"reference": one, "sdpa": two}
    known = SECTIONS["attention.PyTorchAttentionSaved"]
    assert [ratio for ratio, _ in _headline(overviews, True, known)] == ["", "2.00\u00d7"]
    known = SECTIONS["attention.FlashAttention"]
    assert [ratio for ratio, _ in _headline(overviews, True, known)] == [
        "1.00\u00d7 ±\u00a01.0\u00a0%",
        "2.00\u00d7 ±\u00a01.0\u00a0%",
    ]


def test_every_clock_has_words() -> None:
    assert CLOCKS.keys() == set(get_args(ClockName))


@pytest.fixture
def several(tmp_path: Path) -> list[Measured]:
    return [measured(suite, tmp_path) for suite in (synthetic.GPU, synthetic.SAVED, synthetic.FIRST_CALL)]


def test_several_sections_have_contents_that_say_the_result(several: list[Measured]) -> None:
    page = render("demo", [MachineAttention(H200, several)], "")
    [contents] = re.findall(r'<nav class="contents".*?</nav>', page, flags=re.DOTALL)
    for target in re.findall(r'href="#(.*?)"', contents):
        assert page.count(f'id="{target}"') == 1
    assert "eager PyTorch needs 2.00\u00d7 the memory" in text_of(contents)
    assert "One causal head, every shape 6.51\u00d7 ± " in text_of(contents)
    assert 'class="contents"' not in render("demo", [MachineAttention(H200, several[:1])], "")
    assert len(set(idents := re.findall(r' id="(.*?)"', page))) == len(idents)
