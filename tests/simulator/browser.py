"""A browser without scripts, for the simulator's page."""

import html
import re
from collections.abc import Mapping
from urllib.parse import urlencode

import httpx2


class Browser:
    """Fetches the page and sends its forms."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str = "/", **headers: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", headers=headers, timeout=30)

    def post(self, form: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> httpx2.Response:
        sent = {"content-type": "application/x-www-form-urlencoded", **headers}
        return httpx2.post(f"{self.url}/page/{form}", content=urlencode(fields), headers=sent, timeout=30)

    def send(self, form: str, **fields: str) -> httpx2.Response:
        return self.post(form, fields, {"origin": self.url})

    def do(self, form: str, **fields: str) -> str:
        """Send a form that must succeed, and return the page it leads back to."""
        answer = self.send(form, **fields)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith("/#")
        return self.get().text

    def section(self, name: str) -> str:
        """The page's part under the heading of this id, as text without tags."""
        _, _, rest = self.get().text.partition(f'<h2 id="{name}">')
        return html.unescape(re.sub(r"<[^>]*>", " ", rest.partition("<h2 ")[0]))


def refused(answer: httpx2.Response) -> str:
    """The sentence on a page that says no."""
    assert answer.status_code == 400, answer.text
    found = re.search(
        r'<p class="trouble" role="alert"><strong>Nothing was done.</strong> (.*?)</p>', answer.text, re.DOTALL
    )
    assert found is not None
    return html.unescape(found[1])
