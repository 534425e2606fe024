"""What the documents lead to is there: whoever is on call follows a link, and has no time to look for it."""

import re

import pytest

from tests.docs.examples import FILES, ROOT

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("file", FILES)
def test_every_link_leads_somewhere(file: str) -> None:
    path = ROOT / file
    text = path.read_text(encoding="utf-8")
    for target, place in _LINK.findall(text):
        to = path.parent / target if target else path
        assert to.exists(), target
        if place:
            assert place in map(anchor, _HEADING.findall(to.read_text(encoding="utf-8"))), (target, place)
