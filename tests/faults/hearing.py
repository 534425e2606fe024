"""The product's own receiver and its events worker, in a process to be killed.

python -m tests.faults.hearing DSN SIMULATOR DIALECT PORT
"""

import os
import sys

import structlog
import uvloop

from tallystick import app
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.providers.declared import ProviderSettings
from tallystick.secret import Secret
from tallystick.settings import Settings
from tallystick.webhooks.worker import EventsWorker
from tallystick.workers.crew import working
from tests.planted.bugs import BUGS
from tests.providers.worlds import API_KEY, FAST, HEX

# What signs a dialect's webhooks; the last is the one that the worlds' accounts have now.
SECRETS = {"stripe": "whsec_contract", "adyen": HEX}


def settings(dsn: str, url: str, dialect: str) -> Settings:
    """The service with this provider, as somebody would set it."""
    more = {
        "stripe": {},
        "adyen": {
            "transfer_api_base": f"{url}/adyen/btl/v4",
            "merchant_account": "TestMerchant",
            "balance_account": "BA00000000000000000000001",
        },
    }
    account = ProviderSettings(
        api_key=Secret(API_KEY),
        api_base=f"{url}/adyen/checkout/v72" if dialect == "adyen" else f"{url}/{dialect}",
        webhook_secrets=(Secret(SECRETS[dialect]),),
        requests_per_second=FAST,
        more=more[dialect],
    )
    return Settings(database_url=dsn, provider=dialect, providers={dialect: account})


async def main(dsn: str, url: str, dialect: str, port: int) -> None:
    async with app.running(settings(dsn, url, dialect)) as service, working([EventsWorker(service.events)]):
        await serve(build(service), "127.0.0.1", port, on_listening=lambda _host, port: print(port, flush=True))


if __name__ == "__main__":
    # Standard output is for the port alone: nobody reads what comes after it.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if planted := os.environ.get("TALLY_TEST_PLANT"):
        BUGS[planted].plant()
    uvloop.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
