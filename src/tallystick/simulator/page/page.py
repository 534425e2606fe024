"""The page for persons, at `/`: the books, and forms that make something happen. HTML made here, no scripts.

A form is a POST to /page/NAME; it is answered with a redirect back to the page, or with the page and the reason why
nothing was done. Everything shown is escaped: references and descriptions come from clients. See `page_guard` for
whom it answers.

    GET /            the page; ?refresh=5 loads it again every five seconds, ?fault=NAME fills in the form
    GET /page.css    its style
    POST /page/...   forms
"""

from collections.abc import Sequence
from importlib import resources
from typing import Final
from urllib.parse import parse_qsl

import jinja2

from tallystick.simulator.catalogue import CATALOGUE
from tallystick.simulator.control import Control
from tallystick.simulator.dialect import Dialect, Reply, Request
from tallystick.simulator.guard import refusal
from tallystick.simulator.page.form import FORMS, FormFault
from tallystick.simulator.page.view import view
from tallystick.simulator.plan import PlanFault

_POLICY: Final = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    # Not no-referrer: browsers would then send "null" as a form's origin.
    ("referrer-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_HTML: Final = ("content-type", "text/html; charset=utf-8")
_TEXT: Final = ("content-type", "text/plain; charset=utf-8")
_CSS: Final = ("content-type", "text/css; charset=utf-8")
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
# More than any form here has.
_MOST_FIELDS: Final = 200
# Seconds between two looks.
_SHORTEST_REFRESH: Final = 1
_LONGEST_REFRESH: Final = 3600


class SimulatorPage:
    """Answers what no dialect does. `bound_host` is the address the simulator listens on."""

    def __init__(self, dialects: Sequence[Dialect], bound_host: str = "127.0.0.1") -> None:
        self._dialects = {dialect.name: dialect for dialect in dialects}
        self._bound_host = bound_host
        folder = resources.files(__package__)
        self._style = folder.joinpath("page.css").read_bytes()
        environment = jinja2.Environment(
            autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
        )
        self._template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))

    def __call__(self, request: Request, control: Control) -> Reply | None:
        """None: there is no such page."""
        form = request.path.removeprefix("/page/") if request.path.startswith("/page/") else None
        if form not in FORMS and request.path not in {"/", "/page.css"}:
            return None
        unwelcome = refusal(request, self._bound_host, is_form=request.method == "POST")
        if unwelcome is not None:
            return _said(403, unwelcome)
        if request.method not in ({"GET", "HEAD"} if form is None else {"POST"}):
            return _said(405, f"{request.method} is not possible here.")
        if form is not None:
            return self._submitted(request, control, form)
        if request.path == "/page.css":
            return Reply(200, self._style, (_CSS, *_HEADERS))
        return self._rendered(request, control)

    def _submitted(self, request: Request, control: Control, form: str) -> Reply:
        try:
            fields = _fields(request)
            # What a form did before it said no is undone.
            with control.books.alone():
                section = FORMS[form](control, self._dialects, fields)
        except (FormFault, PlanFault) as fault:
            return self._rendered(request, control, status=400, trouble=str(fault))
        # Whoever follows the redirect sees what was done, and so does whoever starts after a SIGKILL.
        control.books.commit()
        control.books.wake()
        return Reply(303, b"", (("location", f"/#{section}"), *_HEADERS))

    def _rendered(self, request: Request, control: Control, *, status: int = 200, trouble: str = "") -> Reply:
        address = f"http://{request.headers['host']}"
        fault = _asked(request, "fault")
        page = self._template.render(
            view(control, self._dialects, address),
            refresh=None if trouble else _refresh(request),
            chosen=fault if fault in CATALOGUE else "",
            trouble=trouble,
        )
        return Reply(status, page.encode(), (_HTML, *_HEADERS))


def _fields(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM_TYPE:
        raise FormFault(f"A form is sent as {_FORM_TYPE}.")
    try:
        text = request.body.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise FormFault("The form cannot be read.") from None


def _refresh(request: Request) -> int | None:
    asked = _asked(request, "refresh")
    if not (asked.isascii() and asked.isdigit()):
        return None
    return min(max(int(asked[:5]), _SHORTEST_REFRESH), _LONGEST_REFRESH)


def _asked(request: Request, name: str) -> str:
    return request.query.get(name, [""])[-1]


def _said(status: int, sentence: str) -> Reply:
    return Reply(status, f"{sentence}\n".encode("utf-8", "replace"), (_TEXT, *_HEADERS))
