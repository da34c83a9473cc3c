"""Guards the server under pressure: a pool too small for everybody, clients that vanish, a full queue.
Nobody gets a wrong answer, no block is lost."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionTokenLogprob

from tests.e2e.server import ENDLESS, ENDLESS_CONTEXT, Metrics, Server, running_server

NUM_STREAMS = 64
NUM_OUTPUT = 24
TOLERANCE = 1e-4
"""K/V and activations are fp32 there, so only the order of additions differs between batches."""


def message_of(stream: int) -> ChatCompletionMessageParam:
    """Some fifty tokens; groups of eight share the first half."""
    return {"role": "user", "content": f"{chr(65 + stream // 8) * 24} tells story number {stream}"}


async def answer(
    client: openai.AsyncOpenAI, server: Server, stream: int, **extra: object
) -> list[ChatCompletionTokenLogprob]:
    """The tokens of a greedy answer, each with its runner-up."""
    chunks = await client.chat.completions.create(
        model=server.model,
        messages=[message_of(stream)],
        max_tokens=NUM_OUTPUT,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        stream=True,
        extra_body={"ignore_eos": True, **extra},
    )
    tokens: list[ChatCompletionTokenLogprob] = []
    reasons = []
    async for chunk in chunks:
        [choice] = chunk.choices
        reasons.append(choice.finish_reason)
        if choice.logprobs is not None:
            tokens += choice.logprobs.content or ()
    assert reasons[-1] == "length"
    assert len(tokens) == NUM_OUTPUT
    return tokens


def assert_same_answer(
    stream: int, loaded: list[ChatCompletionTokenLogprob], alone: list[ChatCompletionTokenLogprob]
) -> None:
    """Equal log-probabilities token by token; a near-tie may flip, and then the paths part."""
    for position, (token, other) in enumerate(zip(loaded, alone, strict=True)):
        where = f"stream {stream}, output token {position}"
        assert math.fabs(token.logprob - other.logprob) < TOLERANCE, where
        if token.bytes != other.bytes:
            first, second = other.top_logprobs
            assert first.logprob - second.logprob < TOLERANCE, where
            return


def test_64_streams_on_a_pool_for_a_few_all_finish_as_if_alone(tiny_server: Server) -> None:
    """The pool holds 64 blocks; 64 streams of some 75 tokens would need five times that."""

    async def together() -> list[list[ChatCompletionTokenLogprob]]:
        async with tiny_server.async_client() as client:
            calls = [answer(client, tiny_server, i) for i in range(NUM_STREAMS)]
            return await asyncio.gather(*calls)

    async def alone() -> list[list[ChatCompletionTokenLogprob]]:
        """One after the other, and with a salt each: nothing that the others computed is reused."""
        async with tiny_server.async_client() as client:
            return [
                await answer(client, tiny_server, i, cache_salt=f"alone {i}")
                for i in range(NUM_STREAMS)
            ]

    before = tiny_server.metrics()
    loaded = asyncio.run(together())
    after = tiny_server.scrape_until(lambda metrics: metrics.is_idle)
    after.assert_no_block_is_lost()
    assert finished(after, "length") - finished(before, "length") == NUM_STREAMS
    assert after("num_preemptions_total") > before("num_preemptions_total")
    hits = after("prefix_cache_hit_tokens_total")
    references = asyncio.run(alone())
    assert tiny_server.metrics()("prefix_cache_hit_tokens_total") == hits
    for stream, (tokens, reference) in enumerate(zip(loaded, references, strict=True)):
        assert_same_answer(stream, tokens, reference)


def finished(metrics: Metrics, reason: str) -> float:
    return metrics("request_success_total", finished_reason=reason)


class RawClient:
    """A connection that can be torn down in mid-answer, politely (FIN) or not (RST)."""

    def __init__(self, server: Server, body: dict[str, object]) -> None:
        address = urlsplit(server.url)
        self._socket = socket.create_connection((address.hostname, address.port))
        payload = json.dumps({"model": server.model, **body}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + payload)

    def read_until(self, mark: bytes) -> None:
        received = b""
        while mark not in received:
            part = self._socket.recv(65536)
            assert part, f"the server closed the connection after {received!r}"
            received += part

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def test_20_clients_killed_in_mid_stream_give_all_their_blocks_back(endless_server: Server) -> None:
    before = endless_server.metrics()
    body = {**ENDLESS, "stream": True}
    clients = [RawClient(endless_server, {**body, "prompt": [i, 1, 2, 3]}) for i in range(20)]
    for client in clients:
        client.read_until(b"\ndata: {")
    for number, client in enumerate(clients):
        if number % 2:
            client.close()
        else:
            client.reset()
    after = endless_server.scrape_until(lambda metrics: metrics.is_idle)
    after.assert_no_block_is_lost()
    assert finished(after, "abort") - finished(before, "abort") == 20


def test_a_client_that_stops_waiting_for_a_whole_answer_cancels_it(endless_server: Server) -> None:
    before = endless_server.metrics()
    client = RawClient(endless_server, {"prompt": [3, 2, 1], **ENDLESS})
    endless_server.scrape_until(lambda metrics: metrics("num_requests_running") == 1)
    client.close()
    after = endless_server.scrape_until(lambda metrics: metrics.is_idle)
    after.assert_no_block_is_lost()
    assert finished(after, "abort") - finished(before, "abort") == 1


def test_a_full_queue_refuses_with_503_and_serves_the_rest(
    endless_model: Path, tmp_path: Path
) -> None:
    """The one seat is taken, two may wait: of 16 calls exactly 14 are refused, at once."""
    flags = ("--max-num-seqs", "1", "--num-blocks", str(ENDLESS_CONTEXT // 16))
    with running_server(
        str(endless_model), tmp_path, *flags, OSTINATO_SCHEDULER__MAX_WAITING="2"
    ) as server:
        for _ in range(2):  # having been full once does no harm
            seated = RawClient(server, {"prompt": [1, 2], "stream": True, **ENDLESS})
            seated.read_until(b"\ndata: {")
            served, refused = asyncio.run(ask_16_until_the_seat_is_free(server, seated))
            assert [answer.choices[0].finish_reason for answer in served] == ["length"] * 2
            for error in refused:
                assert (error.status_code, error.code) == (503, "engine_overloaded")
                assert error.response.headers["retry-after"] == "1"
        server.scrape_until(lambda metrics: metrics.is_idle).assert_no_block_is_lost()


async def ask_16_until_the_seat_is_free(
    server: Server, seated: RawClient
) -> tuple[list[Completion], list[openai.InternalServerError]]:
    """16 calls at once; `seated` leaves when 14 have been refused."""

    async def ask(client: openai.AsyncOpenAI, first: int) -> Completion:
        return await client.completions.create(
            model=server.model, prompt=[first, 2], max_tokens=8, extra_body={"ignore_eos": True}
        )

    async with server.async_client() as client:
        waiting = {asyncio.create_task(ask(client, i)) for i in range(16)}
        refused: list[openai.InternalServerError] = []
        while len(refused) < 14:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                assert isinstance(error, openai.InternalServerError)
                refused.append(error)
        seated.close()
        return list(await asyncio.gather(*waiting)), refused
