"""The Chinese README says what README.md says: the same commands, links, numbers and headings."""

import re
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
COMMENT = re.compile(r"(^|\s)# .*?(?=python -m|$)")  # neither #!/bin/bash nor #SBATCH; a command in a comment stays
NAMES = re.compile(r" *(?:[\w*./-]*(?:/|\.\w+)(?: +|$))*", re.ASCII)  # the files and folders that begin a line

ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
EACH_OTHER = {"README.md", "README.zh.md"}


def code(text):
    return [
        [(NAMES.match(line)[0] if language == "" else COMMENT.sub("", line)).strip() for line in block.splitlines()]
        for language, block in FENCED.findall(text)
    ]


def prose(text):
    return FENCED.sub("", text)


def commands(text):
    spans = {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))}
    return {span for span in spans if re.match(r"python -m perf|asv |pip |git |pytest", span)}


def targets(text):
    return [unquote(target) for target in re.findall(r"\]\(([^)\s]+)\)", prose(text))]


def in_page(text):
    return [target for target in targets(text) if target.startswith("#")]


def headings(text):
    return re.findall(r"^(#+) (.+)$", prose(text), re.M)


def anchors(text):
    return {"#" + re.sub(r"[^\w -]", "", words).replace(" ", "-").lower() for _, words in headings(text)}


def numbers_of_tables(text):
    tables = re.findall(r"(?:^\|.*\n)+", prose(text), re.M)
    return [[re.findall(r"\d+(?:[.,]\d+)*", row) for row in table.splitlines()] for table in tables]


def test_the_english_readme_has_what_is_compared():
    assert all(found(ENGLISH) for found in (code, commands, targets, headings, numbers_of_tables))


def test_code_blocks_differ_in_their_comments_only():
    assert code(CHINESE) == code(ENGLISH)


def test_every_command_in_the_text_is_in_the_chinese_text():
    assert commands(ENGLISH) - commands(CHINESE) == set()


def test_every_link_is_in_the_chinese_text():
    assert set(targets(ENGLISH)) - set(in_page(ENGLISH)) - set(targets(CHINESE)) - EACH_OTHER == set()
    assert len(in_page(CHINESE)) == len(in_page(ENGLISH))


def test_links_within_the_page_lead_to_its_headings():
    assert set(in_page(CHINESE)) - anchors(CHINESE) == set()


def test_numbers_in_tables_are_the_same():
    assert numbers_of_tables(CHINESE) == numbers_of_tables(ENGLISH)


def test_headings_of_each_level_are_as_many():
    assert [level for level, _ in headings(CHINESE)] == [level for level, _ in headings(ENGLISH)]
