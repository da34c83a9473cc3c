"""Starts a real PostgreSQL server for the ledger's tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.redis_server import free_port

START_SECONDS = 60.0
_DEBIAN = Path("/usr/lib/postgresql")


def find_programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres``, or None."""
    named = shutil.which("initdb")
    folders = [Path(named).resolve().parent] if named else []
    folders += sorted(_DEBIAN.glob("*/bin"), reverse=True) if _DEBIAN.is_dir() else []
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def unprivileged_user() -> str | None:
    """Who is to run the server: it refuses root. None: whoever we are."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody", "daemon") if name in names)


@contextmanager
def running_server(programs: Path) -> Iterator[str]:
    """A server for as long as the block runs; gives the URL of an empty database."""
    user = unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="ostinato-pg-"))
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "ledger", "-A", "trust", "-E", "UTF8", "-N"],
        check=True, capture_output=True, user=user, env=environment, cwd=folder,
    )  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-k", folder,
             "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
            stdout=log, stderr=subprocess.STDOUT, user=user, env=environment, cwd=folder,
        )  # fmt: skip
    url = f"postgresql://ledger@127.0.0.1:{port}/postgres"
    try:
        _await(url, server)
        yield url
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


def _await(url: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
