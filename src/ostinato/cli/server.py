"""Running the HTTP server: in the foreground for ``serve``, beside the command for ``chat`` and ``demo``.

    listen ─► load the model ─► serve ─► signal ─► drain (seconds) ─► stop the engine ─► exit 0

The port is taken before the model is loaded, so that a port in use is told at once. On the first signal no
new connection is taken and running answers get a few seconds to finish; what is left is aborted. A second
Ctrl-C does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import uvicorn

from ostinato.errors import ConfigError, EngineStoppedError

if TYPE_CHECKING:
    from fastapi import FastAPI

DRAIN_SECONDS = 3.0
"""How long running answers may go on after the first signal."""
_TICK = 0.1
_BACKLOG = 512


_KEY_IN_URL = re.compile(r"([?&]key=)[^&]*")


def hide_keys(record: logging.LogRecord) -> bool:
    """A filter of the access log: Gemini's clients may send their API key in the URL."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            _KEY_IN_URL.sub(r"\1***", value) if isinstance(value, str) else value
            for value in record.args
        )
    return True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free port.

    Raises:
        ConfigError: the address does not exist, or is taken; says what to do.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )
    except socket.gaierror as error:
        raise ConfigError(f"{host!r} is no address of this machine: {error.strerror}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(_explain_bind(host, port, error)) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """``http://HOST:PORT`` that clients use for a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


class HTTPServer(uvicorn.Server):
    """Uvicorn with our way to stop.

    Args:
        app: what to serve.
        on_ready: called once connections are answered.
        on_drain: called with the number of answers that still run when it is told to stop, if any do.
        abort_rest: called in a thread when answers still run after the drain; ends them.
        access_log: whether to log a line for each request, to the logger ``uvicorn.access``.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        on_ready: Callable[[], None],
        on_drain: Callable[[int], None],
        abort_rest: Callable[[], None],
        access_log: bool = False,
    ) -> None:
        logging.getLogger("uvicorn.access").addFilter(hide_keys)
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",  # the engine's start and stop are ours
                log_config=None,
                log_level=None,
                access_log=access_log,
                timeout_graceful_shutdown=int(DRAIN_SECONDS),
                server_header=False,
            )
        )
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._abort_rest = abort_rest

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        if self.server_state.tasks:
            self._on_drain(len(self.server_state.tasks))
            await self._drain()
        if self.server_state.tasks:
            await asyncio.to_thread(self._abort_rest)
        await super().shutdown(sockets=sockets)

    async def _drain(self) -> None:
        for _ in range(round(DRAIN_SECONDS / _TICK)):
            if self.force_exit or not self.server_state.tasks:
                return
            await asyncio.sleep(_TICK)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take SIGINT and SIGTERM while serving. Unlike uvicorn's own, does not raise them again: a server
        that was asked to stop and has stopped did what it should, and exits with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def background(app: FastAPI, abort_rest: Callable[[], None]) -> Iterator[str]:
    """Serve `app` on a free loopback port from a thread of its own; gives its URL.

    Raises:
        EngineStoppedError: the server ended before it was ready.
    """
    sock = listen("127.0.0.1", 0)
    settled = threading.Event()
    server = HTTPServer(
        app, on_ready=settled.set, on_drain=lambda running: None, abort_rest=abort_rest
    )

    def run() -> None:
        try:
            server.run(sockets=[sock])
        finally:
            settled.set()

    thread = threading.Thread(target=run, name="ostinato-http", daemon=True)
    thread.start()
    settled.wait()
    if not server.started:
        raise EngineStoppedError("the HTTP server did not start")
    try:
        yield url_of(sock)
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


def require_loopback(host: str) -> None:
    """Refuse an address that others could reach. To be called where there are no API keys.

    Raises:
        ConfigError: says how to make a key.
    """
    if host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"refusing to listen on {host!r}: without API keys anybody who can reach it could use the"
            " server and read what others' prompts leave in its cache. Make a key with"
            " `ostinato keys add TENANT`, or use --host 127.0.0.1"
        )


def _explain_bind(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is already in use. Stop what listens there, or choose another"
            f" port: --port {port + 1 if port < 65535 else port - 1} (--port 0 takes any free one)"
        )
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}; choose one from 1024 up, e.g. --port 8000"
    return f"cannot listen on {host}, port {port}: {error.strerror}"
