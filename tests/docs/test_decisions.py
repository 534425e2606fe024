"""A decision is named by its number: each has one of its own, and what is referred to is there."""

import re
from collections import Counter

import pytest

from tests.docs.examples import ROOT

NUMBERS = [file.name[:4] for file in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
FOLDERS = ("src", "tests", "docs", "bench")
TEXTS = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    + [
        file
        for folder in FOLDERS
        for kind in ("py", "sql", "md", "conf")
        for file in (ROOT / folder).rglob(f"*.{kind}")
    ]
)
NAMED = re.compile(r"\bdecisions?[ /](\d{1,4})(?:-([a-z0-9-]+)\.md)?(?: and (\d{1,4}))?")


def test_no_two_decisions_have_one_number() -> None:
    assert [number for number, times in Counter(NUMBERS).items() if times > 1] == []


def test_a_heading_is_what_was_decided_and_the_number_stands_in_the_name_alone() -> None:
    headings = {
        file.name: file.read_text(encoding="utf-8").partition("\n")[0]
        for file in (ROOT / "docs" / "decisions").glob("*.md")
    }
    assert {name: line for name, line in headings.items() if not re.match(r"# [A-Z]", line)} == {}


@pytest.mark.parametrize(
    ("words", "meant"),
    [("decision 4", ["4"]), ("decisions 0026 and 0031", ["0026", "0031"]), ("docs/decisions/0003-x.md", ["0003"])],
)
def test_a_reference_is_seen(words: str, meant: list[str]) -> None:
    assert _named(words) == meant


def test_every_decision_that_is_named_is_there() -> None:
    texts = {file: _named(file.read_text(encoding="utf-8")) for file in TEXTS}
    assert sum(map(len, texts.values())) > 10
    missing = {
        (file.relative_to(ROOT).as_posix(), number)
        for file, numbers in texts.items()
        for number in numbers
        if number.zfill(4) not in NUMBERS
    }
    assert missing == set()


def _named(text: str) -> list[str]:
    return [number for found in NAMED.finditer(text) for number in (found[1], found[3]) if number]
