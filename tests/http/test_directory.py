"""What is looked up is what Starlette's router would have found, with the same parameters."""

from collections.abc import Coroutine
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp

from tallystick import app
from tallystick.http import api
from tallystick.http.call import Receive, Scope, Send
from tallystick.http.directory import Directory
from tallystick.settings import Settings
from tallystick.webhooks.receiver import Front
from tests import servers

SHAPES = (
    "/livez",
    "/v1/orders",
    "/v1/orders/batch",
    "/v1/orders/{id}",
    "/v1/orders/{other}",
    "/v1/orders/{id}/pay",
    "/v1/orders/{id}/pay/now",
    # None of these is looked up.
    "/{id}",
    "/v1/{kind}/{id}/twice",
    "/v1/numbers/{id:int}",
    "/v1/files/{path:path}",
    "/v1/drawings/{id}.svg",
    "/v1/pages/all/{id}",
)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "get", "BREW"])
ODD = st.sampled_from(
    ["", ".", "..", "%2F", "batch", "pay", "{id}", "v1", "orders", "\n", "ord_1\n", "7", "é", "😀", "\0", " "]
)
MOST_OFTEN = settings(max_examples=500)


class Noted:
    """An application that notes what reached it, and with which parameters."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self._name = name
        self._notes = notes

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        self._notes.append((self._name, scope.get("method"), scope["path"], scope.get("path_params", {})))


class Both:
    """The same table in a directory and in the router that stands behind it."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._notes: list[Any] = []
        self._directory = Directory({path: Noted(path, self._notes) for path in paths}, Noted("nowhere", self._notes))

    def compare(self, scope: Scope) -> str:
        """Where it led both ways."""
        self._notes.clear()
        for way in (self._directory, self._directory.router):
            finish(way, {**scope})
        looked_up, routed = self._notes
        assert looked_up == routed
        return str(routed[0])


def finish(application: ASGIApp, scope: Scope) -> None:
    """Run it: nothing in it waits."""
    call: Coroutine[Any, Any, None] = application(scope, None, None)  # type: ignore[arg-type, assignment]
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("something waited")


def asked(path: str, method: str = "GET", **more: Any) -> Scope:
    return {"type": "http", "path": path, "method": method, "root_path": "", **more}


def near(paths: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Paths of the table, with anything where they have a parameter, and with parts put in, taken out and replaced."""
    parts = st.sampled_from(sorted({part for path in paths for part in path.split("/")})) | ODD | st.text(max_size=5)

    def filled(path: str) -> st.SearchStrategy[str]:
        return st.tuples(*(st.just(part) | parts if "{" not in part else parts for part in path.split("/"))).map(
            "/".join
        )

    exact = st.tuples(st.sampled_from(paths), parts).map(lambda two: "/".join(_with(two[0].split("/"), two[1])))
    ended = st.tuples(exact, st.sampled_from(["/", "\n", "//", "/x", "?", "%0A"])).map("".join)
    return (
        exact | ended | st.sampled_from(paths).flatmap(filled) | st.lists(parts, max_size=7).map("/".join) | st.text()
    )


def _with(parts: list[str], value: str) -> list[str]:
    return [value if "{" in part else part for part in parts]


@MOST_OFTEN
@given(path=near(SHAPES), method=METHODS)
@example(path="/v1/orders/batch", method="GET")
@example(path="/v1/orders/batch\n", method="GET")
@example(path="/v1/orders/a\n", method="GET")
@example(path="/v1/orders/", method="GET")
@example(path="/v1/orders\n", method="GET")
@example(path="/v1/orders/a/pay\n", method="POST")
@example(path="", method="GET")
def test_it_leads_where_the_router_does(path: str, method: str) -> None:
    Both(SHAPES).compare(asked(path, method))


@given(path=near(SHAPES), root=st.sampled_from(["", "/", "/v1", "/v1/orders", "/shop", "/v1/"]))
def test_it_leads_there_below_another_root_too(path: str, root: str) -> None:
    Both(SHAPES).compare(asked(path, root_path=root))


def test_parameters_of_whoever_is_in_front_stay() -> None:
    scope = asked("/v1/orders/a/pay", path_params={"shop": "b", "id": "c"})
    assert Both(SHAPES).compare(scope) == "/v1/orders/{id}/pay"


def test_what_is_no_http_is_left_to_the_router() -> None:
    scope = {"type": "websocket", "path": "/v1/orders", "root_path": ""}
    assert Both(SHAPES).compare(scope) == "nowhere"


async def test_it_leads_where_the_router_does_in_the_table_there_is(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        front = api.build(service)
    assert isinstance(front, Front)
    assert isinstance(front.api, Directory)
    paths = tuple(route.path for route in front.api.router.routes if isinstance(route, PathRoute))
    both = Both(paths)

    @MOST_OFTEN
    @given(path=near(paths), method=METHODS)
    def compare(path: str, method: str) -> None:
        both.compare(asked(path, method))

    compare()
    # All of the table is looked up; the router has nothing left but what is odd.
    assert {*front.api._plain, *(path for path in paths if "{" in path)} == {*paths}
    assert len(front.api._plain) + len(front.api._named) == len(paths)
