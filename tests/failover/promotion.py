"""The promotion of docs/operating.md, run as it stands."""

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.failover.cluster import Cluster, Member

PROMOTE: Final = Path(__file__).parents[2] / "deploy" / "postgres" / "promote"


def promote(cluster: Cluster, *names: str, first: Path | None = None) -> Member:
    """The procedure of docs/operating.md, literally. Who was promoted. `first`: a folder of programs before others."""
    programs = cluster.primary._programs
    given = [f"{name}=host={cluster.standbys[name].sockets} port=5432 user=postgres" for name in names]
    done = subprocess.run(
        [str(PROMOTE), *given],
        env={**os.environ, "PATH": f"{programs if first is None else f'{first}:{programs}'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cluster.standbys[done.stdout.strip()]
