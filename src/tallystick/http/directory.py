"""The resource at a path, looked up: a router tries the patterns of the table one after the other.

A request is led

    /v1/orders             by the path itself
    /v1/orders/{id}/pay    by what is left of the path without the parameter
    anything else          by the router: it is odd, or there is nothing
"""

from collections.abc import Mapping
from typing import Final

from starlette.routing import Route as PathRoute
from starlette.routing import Router
from starlette.types import ASGIApp

from tallystick.http.call import Receive, Scope, Send

# Where the table's paths have their parameter, counted in what the slashes separate: "", "v1", "orders", "{id}", "pay".
_PARAMETER: Final = 3


class Directory:
    """Resources by their paths, answering as the router of the same table would: it stays behind for what is odd."""

    def __init__(self, resources: Mapping[str, ASGIApp], nowhere: ASGIApp) -> None:
        """A path without a parameter goes before one whose parameter it would fit. `router` has all of them."""
        # A bare Router without Starlette's middleware: the resource does its work, and the way is shorter.
        self.router = Router(
            [PathRoute(path, resource) for path, resource in resources.items()],
            redirect_slashes=False,
            default=nowhere,
        )
        self._plain = {path: resource for path, resource in resources.items() if "{" not in path}
        self._named: dict[str, tuple[str, ASGIApp]] = {}
        for path, resource in resources.items():
            rest, name = _apart(path)
            if path.count("{") == 1 and name.startswith("{") and name[1:-1].isidentifier():
                self._named.setdefault(rest, (name[1:-1], resource))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._find(scope)(scope, receive, send)

    def _find(self, scope: Scope) -> ASGIApp:
        if scope["type"] != "http" or scope.get("root_path"):
            return self.router
        found = self.find(scope["path"])
        if found is None:
            return self.router
        resource, parameters = found
        if parameters:
            scope["path_params"] = {**scope.get("path_params", {}), **parameters}
        return resource

    def find(self, path: str) -> tuple[ASGIApp, dict[str, str]] | None:
        """The resource at a path, and what its parameter is. None: only the router can tell."""
        resource = self._plain.get(path)
        if resource is not None:
            return resource, {}
        rest, value = _apart(path)
        found = self._named.get(rest)
        # An empty parameter is none; and to a pattern a line feed at the end is as good as nothing.
        if found is None or not value or value.endswith("\n"):
            return None
        name, resource = found
        return resource, {name: value}


def _apart(path: str) -> tuple[str, str]:
    """The path without what stands where the parameter does, and that; both empty for a path that is too short."""
    parts = path.split("/")
    if len(parts) <= _PARAMETER:
        return "", ""
    value, parts[_PARAMETER] = parts[_PARAMETER], ""
    return "/".join(parts), value
