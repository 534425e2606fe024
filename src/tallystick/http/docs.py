"""The documentation as served: the document for programs, and one page for people made from that document.

The page carries its style inside and loads nothing; its Content-Security-Policy allows exactly that style.
"""

import base64
import hashlib
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from tallystick.http.call import Call, Reply
from tallystick.http.problem import PROBLEMS
from tallystick.ledger.outcome import Rejected


class Documentation:
    """The endpoints of the documentation; `describe` fills it once the route table is known."""

    def __init__(self) -> None:
        """Empty: the table that it describes also holds its own two routes."""
        self._document = Reply(200, b"{}")
        self._page = Reply(200, b"", b"text/html; charset=utf-8")

    def describe(self, document: dict[str, Any]) -> None:
        """Render both forms of the document."""
        self._document = Reply(200, msgspec.json.encode(document))
        self._page = _rendered(document)

    async def document(self, call: Call) -> Reply | Rejected:
        """OpenAPI 3.1."""
        query = call.query()
        return query if isinstance(query, Rejected) else self._document

    async def page(self, call: Call) -> Reply | Rejected:
        """The page."""
        query = call.query()
        return query if isinstance(query, Rejected) else self._page


def _rendered(document: dict[str, Any]) -> Reply:
    folder = resources.files(__package__)
    style = folder.joinpath("docs.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"pretty": _pretty, "shape": _shape, "code": _code}
    page = environment.from_string(folder.joinpath("docs.html").read_text(encoding="utf-8")).render(
        document=document, groups=_groups(document), problems=PROBLEMS, style=style
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Reply(
        200,
        page.encode(),
        b"text/html; charset=utf-8",
        ((b"content-security-policy", policy.encode()), (b"x-content-type-options", b"nosniff")),
    )


def _groups(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The operations by tag, in the order of the route table."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            entry = {"method": method.upper(), "path": path, **operation}
            groups.setdefault(operation["tags"][0], []).append(entry)
    return groups


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _code(text: str) -> Markup:
    """Text with `backticks` set as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def _shape(schema: dict[str, Any]) -> Markup:
    """A schema in a few words; a named one as a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(_shape(choice) for choice in schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema and schema["items"] is not False:
        return Markup("list of ") + _shape(schema["items"])
    if "enum" in schema:
        return Markup(", ").join(Markup("<code>{}</code>").format(value) for value in schema["enum"])
    return Markup("{}").format(schema.get("format") or schema.get("type", "any"))
