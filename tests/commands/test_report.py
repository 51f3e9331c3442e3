"""`python -m perf report`: what it writes, what it refuses, and what it hands in."""

import io
import os
import shutil
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from PIL import Image

from perf.__main__ import main
from perf.writeup import bundle, convert, source
from perf.writeup.markdown import table
from tests.repositories import git
from tests.site import browser
from tests.writeup.made_up import ALL, MACHINE, ddp_row, perf_folder

pytest.importorskip("pypandoc", reason="needs pip install -e '.[report]'")
pytest.importorskip("typst", reason="needs pip install -e '.[report]'")

ROOT = Path(__file__).parents[2]
FILES = {"writeup.md", "writeup.html", "writeup.pdf", "tables.tex"}
HOSTILE = '<script>alert(1)</script> #import "x" $ \\input{/etc/passwd} ![x](https://a.example/x.png) | x'


def report(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


class Tags(HTMLParser):
    """Every tag, and whatever makes a page ask another host for something."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.asked = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.asked += [
            value for name, value in attrs if name in ("src", "srcset") or (tag == "link" and name == "href")
        ]


@pytest.fixture(scope="module")
def made(once, tmp_path_factory):
    """A folder for this worker alone, in which conversions put files of their own for a moment."""

    def write(folder):
        rows = ALL | {"ddp": [*ALL["ddp"], ddp_row("torch", 3) | {"status": HOSTILE}]}
        done = report("--results", perf_folder(folder / "perf", rows), "--machine", MACHINE, "--out", folder / "out")
        assert done.exit_code == 0, done.output
        return folder / "out", done.output

    out, said = once("made-report", write)
    return shutil.copytree(out, tmp_path_factory.mktemp("made") / "out"), said


def test_it_writes_every_form_and_says_what_is_missing(made):
    out, said = made
    assert {path.name for path in out.iterdir()} == FILES | {"figures"}
    assert "writeup.pdf and 4 figures" in said
    assert "not measured: python -m perf study end-to-end" in said
    assert "for benchmarking_script, benchmarking_mixed_precision, memory_profiling" in said
    assert "naive_ddp_benchmarking" not in said


def test_the_page_needs_no_other_file_and_runs_nothing(made):
    page = (made[0] / "writeup.html").read_text(encoding="utf-8")
    parsed = Tags(page)
    assert parsed.tags.count("img") == 4
    assert all(value.startswith(("data:image/png;base64,", "data:,")) for value in parsed.asked if value is not None)
    assert "script" not in parsed.tags
    assert "&lt;script&gt;alert(1)" in page
    assert "prefers-color-scheme: dark" in page


def test_the_pdf_is_one_with_all_that_the_document_has(made):
    pages = (made[0] / "writeup.pdf").read_bytes()
    assert pages.startswith(b"%PDF-") and pages.rstrip().endswith(b"%%EOF")
    assert pages.count(b"/Subtype/Image") + pages.count(b"/Subtype /Image") >= 4


def test_latex_has_the_tables_and_no_command_of_a_row(made):
    tables = (made[0] / "tables.tex").read_text(encoding="utf-8")
    assert tables.count(r"\begin{longtable}") == tables.count(r"\end{longtable}") > 8
    assert r"\input{" not in tables.partition("\n")[2]
    assert r"\textbackslash input\{" in tables


def test_the_same_rows_make_the_same_bytes(made, tmp_path):
    out, _ = made
    text = (out / "writeup.md").read_text(encoding="utf-8")
    assert convert.pdf(text, out) == (out / "writeup.pdf").read_bytes()
    assert convert.html(text, out) == (out / "writeup.html").read_text(encoding="utf-8")


def test_no_line_ends_between_a_number_and_its_per_cent(tmp_path):
    assert "shrinks by 21\u00a0%, a" in convert.html("# t\n\nshrinks by 21 %, a\n", tmp_path)


@pytest.mark.slow
def test_nothing_of_any_committed_page_reaches_into_its_margins(committed, tmp_path):
    assert_within_margins(committed.document.text, shutil.copytree(committed.folder, tmp_path / "committed"))


def test_nothing_of_any_page_reaches_into_its_margins(made):
    """With a reason that no line can hold."""
    out, _ = made
    text = (out / "writeup.md").read_text(encoding="utf-8")
    assert_within_margins(f"{text}\n{table([{'reason': HOSTILE + '/a_long-path' * 30, 'n': 1}])}", out)


def assert_within_margins(text, folder):
    """Every table, picture and word fits its page; `folder` is where the figures are."""
    dots = 50 / 2.54  # a centimetre
    for number, page in enumerate(convert.pages(text, folder, format="png", ppi=50), 1):
        image = Image.open(io.BytesIO(page)).convert("L")
        ink = image.point(lambda grey: 255 * (grey < 230)).getbbox()
        assert ink, f"page {number} is empty"
        assert ink[0] >= 1.7 * dots and ink[2] <= image.width - 1.7 * dots, f"page {number}: {ink}"
        assert ink[1] >= 1.7 * dots, f"page {number}: {ink}"
        assert image.crop((0, round(image.height - 1.9 * dots), image.width // 3, image.height)).getextrema()[0] > 230


@pytest.mark.browser
@browser.needs_browser
def test_the_page_is_as_wide_as_its_window_and_has_no_barrier(made, driver):
    from axe_core_python.selenium import Axe

    driver.get((made[0] / "writeup.html").as_uri())
    assert driver.execute_script("return [...document.images].every((one) => one.naturalWidth > 0)")
    for width, scheme in ((390, "dark"), (1300, "light")):
        browser.emulate(driver, width, scheme)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        found = Axe().run(driver, options={"resultTypes": ["violations"]})["violations"]
        assert not found, [(scheme, violation["id"], violation["nodes"][0]["html"]) for violation in found]


def test_what_is_wrong_is_one_line(tmp_path):
    folder = perf_folder(tmp_path / "perf", ALL)
    (tmp_path / "file").write_text("")
    for arguments, said in (
        (("--results", folder, "--machine", "other"), "machine 'other' was given; allowed: box, box-x2"),
        (("--results", tmp_path), "was given; allowed: a perf folder with results"),
        (("--results", folder, "--machine", MACHINE, "--out", tmp_path / "file" / "out"), "cannot be written"),
        (("--results", tmp_path / "none"), "does not exist"),
    ):
        done = report("--out", tmp_path / "out", *arguments)
        assert done.exit_code != 0 and said in done.output, done.output
        assert "Traceback" not in done.output


def test_a_missing_library_is_one_line_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "typst", None)
    done = report("--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.output == "Error: the report needs typst, which is not installed: pip install -e '.[report]'\n"
    assert not (tmp_path / "out").exists()


@pytest.fixture
def unconverted(undrawn, monkeypatch):
    """The Markdown in place of every other form: what this module's first tests are about takes a second."""
    for form, convert_to in (("html", str), ("latex_tables", str), ("pdf", str.encode)):
        monkeypatch.setattr(convert, form, lambda text, *_, convert_to=convert_to: convert_to(text))


def test_it_writes_the_problems_of_another_edition(unconverted, tmp_path):
    done = report("--edition", "2026", "--results", perf_folder(tmp_path / "perf", {}), "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "10 of 27 problems of 2026 have all that they ask for" in done.output
    assert "spring 2026" in (tmp_path / "out" / "writeup.html").read_text(encoding="utf-8")
    assert report("--edition", "2024").exit_code == 2


def test_a_warning_costs_no_report(unconverted, tmp_path):
    folder = perf_folder(tmp_path / "perf", ALL)
    (folder / "studies/results/box-x2/sharding.json").write_text("{")
    done = report("--results", folder, "--machine", MACHINE, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "warning: studies/results/box-x2/sharding.json is left out" in done.output
    assert "What could not be read" in (tmp_path / "out" / "writeup.md").read_text(encoding="utf-8")


FILES_OF_CHECKOUT = [
    ".gitignore",
    "new.py",
    "notes.txt",
    "source.py",
    "tests/data.pt",
    "tests/rows.json",
    "tests/test_code.py",
]


def checkout(folder):
    """A small repository: tracked, deleted, ignored and new files."""
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_code.py").write_text("import source\n\n\ndef test_it():\n    pass\n")
    for name in ("source.py", "gone.py", "tests/data.pt", "tests/rows.json", "notes.txt"):
        (folder / name).write_text(f"# {name}")
    (folder / ".gitignore").write_text("# made\n*.log\nbuilt/\n\nkept/**/*.part\n")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        git(folder, *arguments)
    (folder / "gone.py").unlink()
    (folder / "new.py").write_text("new")
    (folder / "a.log").write_text("ignored")
    return folder


def test_the_archive_has_fixtures_and_new_files_and_nothing_that_git_ignores(tmp_path):
    folder = checkout(tmp_path / "repo")
    (folder / "out").mkdir()
    (folder / "out" / "writeup.pdf").write_text("no code")
    archives = []
    for name in ("one.zip", "two.zip"):
        assert bundle.zip_code(folder, tmp_path / name, folder / "out") == len(FILES_OF_CHECKOUT)
        archives.append((tmp_path / name).read_bytes())
    with zipfile.ZipFile(tmp_path / "one.zip") as packed:
        names = packed.namelist()
        assert packed.read("tests/data.pt") == b"# tests/data.pt"
    assert names == FILES_OF_CHECKOUT
    assert archives[0] == archives[1]
    with pytest.raises(click.ClickException, match="allowed: a git checkout"):
        list(bundle.files(tmp_path))


def test_an_unpacked_archive_makes_the_same_archive_without_git(tmp_path):
    bundle.zip_code(checkout(tmp_path / "repo"), tmp_path / "code.zip", tmp_path / "out")
    unpacked = tmp_path / "un packed"
    with zipfile.ZipFile(tmp_path / "code.zip") as packed:
        packed.extractall(unpacked)
    shutil.copy(tmp_path / "code.zip", unpacked)
    for name in ("a.log", "built/x.py", "tests/built/y", "kept/deep/er/z.part", "env/pyvenv.cfg", "env/lib/w.py"):
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_text("not handed in")
    bundle.zip_code(unpacked, tmp_path / "again.zip", tmp_path / "out")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "code.zip").read_bytes()


def test_an_archive_without_a_module_of_its_tests_is_refused_before_they_run(tmp_path, monkeypatch):
    folder = checkout(tmp_path / "repo")
    (folder / "tests" / "test_ignored.py").write_text("import built.x\n")
    (folder / "built").mkdir()
    (folder / "built" / "x.py").write_text("")
    monkeypatch.setattr(bundle, "run_tests", lambda: pytest.fail("these take minutes"))
    monkeypatch.setattr(bundle, "ROOT", folder)
    out = tmp_path / "out"
    done = report("--results", perf_folder(tmp_path / "perf", ALL), "--machine", MACHINE, "--out", out, "--bundle")
    assert done.exit_code == 1
    assert "No module named 'built'" in done.output.splitlines()[-1]
    assert list(out.iterdir()) == []


def test_red_tests_bundle_nothing_and_take_an_older_bundle_away(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "require_complete", lambda archive: None)
    monkeypatch.setattr(bundle, "run_tests", lambda: 1)
    monkeypatch.setattr(bundle, "ROOT", checkout(tmp_path / "repo"))
    out = tmp_path / "out"
    out.mkdir()
    (out / "code.zip").write_text("of before")
    done = report("--results", perf_folder(tmp_path / "perf", ALL), "--machine", MACHINE, "--out", out, "--bundle")
    assert (done.exit_code, done.output.splitlines()[-1]) == (
        1,
        "Error: the tests failed (exit status 1): nothing was bundled",
    )
    assert list(out.iterdir()) == []


def test_green_tests_bundle_write_up_and_code(unconverted, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(bundle, "require_complete", lambda archive: ran.append(zipfile.is_zipfile(archive)))
    monkeypatch.setattr(bundle, "run_tests", lambda: ran.append("tests") or 0)
    monkeypatch.setattr(bundle, "ROOT", checkout(tmp_path / "repo"))
    out = tmp_path / "out"
    done = report("--results", perf_folder(tmp_path / "perf", ALL), "--machine", MACHINE, "--out", out, "--bundle")
    assert done.exit_code == 0, done.output
    assert ran == [True, "tests"]
    assert {path.name for path in out.iterdir()} == FILES | {"figures", "code.zip"}
    assert "code.zip" in done.output


def test_the_tests_that_a_bundle_runs_are_all_of_them(monkeypatch):
    called = []
    monkeypatch.setattr(
        bundle.subprocess,
        "run",
        lambda *given, **how: called.append((given, how)) or subprocess.CompletedProcess([], 5),
    )
    assert bundle.run_tests() == 5
    assert called == [(([sys.executable, "-m", "pytest"],), {"cwd": ROOT, "check": False})]


def test_the_courses_script_is_the_command(tmp_path):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "$PWD $@"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        [ROOT / "test_and_make_submission.sh", "--out", "x"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{ROOT} -m perf report --bundle --out x\n"


def test_the_machine_of_which_most_is_on_file_is_the_default(committed_source, monkeypatch):
    monkeypatch.setattr(source, "load", lambda folder: committed_source.frame)
    assert source.read(ROOT / "perf", None).machine == "nvidia-h200"


def test_help_teaches():
    said = report("--help").output
    assert "python -m perf report --bundle" in said
    assert "pip install -e '.[report]'" in said
