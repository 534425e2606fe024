"""Where the database is: `mysql://user:password@host:port/name?ssl_ca=...`, read once. Pure."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tallystick.errors import Misconfigured

SCHEMES = ("mysql", "mariadb")
_OPTIONS = ("socket", "ssl_ca")


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a DSN. The password stays out of every message."""

    host: str
    port: int
    user: str
    database: str
    password: str = field(default="", repr=False)
    socket: str | None = None
    ssl_ca: str | None = None

    def arguments(self) -> dict[str, Any]:
        """As the driver takes them."""
        arguments: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }
        if self.socket is not None:
            arguments["unix_socket"] = self.socket
        if self.ssl_ca is not None:
            arguments["ssl"] = {"ca": self.ssl_ca}
        return arguments


def is_address(dsn: str) -> bool:
    """Whether this DSN is one for MariaDB or MySQL."""
    return dsn.partition("://")[0] in SCHEMES


def read_address(dsn: str) -> Address:
    """The address, or Misconfigured saying what is wrong with it."""
    try:
        parts = urlsplit(dsn)
        port = parts.port or 3306
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        # Not in the parser's words: they may repeat a part of the password.
        raise Misconfigured(
            "TALLY_DATABASE_URL is not an address like mysql://user:password@host:port/database"
        ) from None
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme not in SCHEMES or not name or not parts.username:
        raise Misconfigured("TALLY_DATABASE_URL is not of the form mysql://user:password@host:port/database")
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise Misconfigured(f"TALLY_DATABASE_URL has options that are not known here: {', '.join(unknown)}")
    return Address(
        host=parts.hostname or "127.0.0.1",
        port=port,
        user=unquote(parts.username),
        database=name,
        password=unquote(parts.password or ""),
        socket=options.get("socket"),
        ssl_ca=options.get("ssl_ca"),
    )
