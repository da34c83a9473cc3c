"""Noticing that a client has gone, so that nothing is computed for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""Nginx's word for it; nobody is left to read the status."""


class ClientDisconnectedError(Exception):
    """The client closed the connection before its answer was ready."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, but cancel it as soon as the client is gone. The request's body must have been read.

    Raises:
        ClientDisconnectedError: after `work` has been cancelled and has cleaned up.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnectedError
        return task.result()
    finally:
        await _cancel(watcher)
        await _cancel(task)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel and wait for the end; its own exception, if any, has been taken by then or is of no use."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
