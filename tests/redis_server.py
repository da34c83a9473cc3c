"""Starts a real Redis or Valkey server for the remote tier's tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 20.0


class RedisServer:
    """A server on a free port of this machine, which keeps nothing.

    Args:
        program: path of ``redis-server`` or ``valkey-server``.
        folder: where it works.
        port: to listen on.
        memory: its ``maxmemory``.
    """

    def __init__(self, program: str, folder: Path, port: int, memory: str = "0") -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self._log = (folder / f"redis-{port}.log").open("wb")
        self._process = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(folder), "--maxmemory", memory],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._await_start()

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"no Redis server came up on port {self.port}")

    def stop(self) -> None:
        """As if it had been killed. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def find_program() -> str | None:
    """Path of a server's program on this machine, or None."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_server(program: str, folder: Path, memory: str = "0") -> Iterator[RedisServer]:
    """A server for as long as the block runs."""
    server = RedisServer(program, folder, free_port(), memory)
    try:
        yield server
    finally:
        server.stop()
