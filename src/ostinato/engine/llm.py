"""LLM: the engine without a server, for scripts and notebooks.

from ostinato import LLM, SamplingParams

llm = LLM("smollm2-135m-instruct")
for output in llm.generate(["The sea is", "The sky is"], SamplingParams(max_tokens=16)):
    print(output.outputs[0].text, output.report.cached_tokens)
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from types import FrameType, TracebackType
from typing import Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ostinato.cache.report import CacheReport
from ostinato.cache.types import TokenArray
from ostinato.clock import SystemClock
from ostinato.config import DEFAULT_MODEL, load_config
from ostinato.engine.async_engine import STALL_SECONDS
from ostinato.engine.build import build_core
from ostinato.engine.core import EngineCore
from ostinato.engine.outputs import FinishReason, OutputDelta, TokenLogprob
from ostinato.engine.reasoning import allow_reasoning
from ostinato.engine.request import EngineRequest, token_array
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import EngineStoppedError, InvalidRequestError
from ostinato.models.chat_encoding import END_CHARACTERS, encode_chat
from ostinato.models.reasoning.parser import ReasoningParser
from ostinato.models.reasoning.syntax import (
    Reasoning,
    ReasoningSyntax,
    choose_reasoning,
    reasoning_of,
)

Prompt: TypeAlias = str | Sequence[int] | npt.NDArray[np.integer]
"""Text, or token ids."""
Message: TypeAlias = Mapping[str, Any]
"""One chat message, as OpenAI has them."""


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: which of the n.
        text: without stop strings and special tokens; of `LLM.chat`, without the thought.
        token_ids: all that were generated, the one that ended the answer included.
        logprobs: one entry a token if they were asked for, else empty.
        finish_reason: why it ended.
        stop_reason: the stop string or stop token that ended it, None for end-of-sequence and length.
        reasoning: what the model thought before it answered, without marks; None if it did not, and for
            `LLM.generate`, whose text is as the model wrote it.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    reasoning: str | None = None

    def add(self, delta: OutputDelta) -> None:
        """Append the next piece."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason

    def split(self, reasoning: Reasoning) -> None:
        """Tell thought and answer apart. Once, when the text is complete."""
        parser = ReasoningParser(reasoning)
        read, rest = parser.feed(self.text), parser.finish()
        self.reasoning = read.thought + rest.thought or None
        self.text = read.answer + rest.answer


@dataclass(slots=True)
class RequestOutput:
    """A prompt with its answers.

    Attributes:
        request_id: made up by the `LLM`.
        prompt: its text; None if it was given as token ids.
        prompt_token_ids: what the model saw.
        outputs: n answers in order.
        report: where the prompt's tokens came from.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    report: CacheReport


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What is to be answered.

    Attributes:
        text: None if it was given as token ids.
        reasoning: how answers think; None if nothing is to be split.
    """

    text: str | None
    token_ids: TokenArray
    reasoning: Reasoning | None = None


@dataclass(slots=True)
class _Job:
    """A request on its way, with the answers so far."""

    prompt: _Prompt
    request: EngineRequest
    outputs: list[CompletionOutput]
    report: CacheReport | None = None
    unfinished: int = 0

    def add(self, delta: OutputDelta) -> None:
        self.report = delta.report
        self.outputs[delta.index].add(delta)
        self.unfinished -= delta.finish_reason is not None

    def output(self) -> RequestOutput:
        if self.report is None:
            raise RuntimeError(f"{self.request.request_id} finished without a cache report")
        if self.prompt.reasoning is not None:
            for output in self.outputs:
                output.split(self.prompt.reasoning)
        token_ids = self.request.prompt_token_ids.tolist()
        return RequestOutput(
            self.request.request_id, self.prompt.text, token_ids, self.outputs, self.report
        )


class LLM:
    """A model in this process. Not thread-safe; the calling thread does the work.

    What one call computes is cached for the next.

    Args:
        model: a name, a GGUF file, or a folder.
        settings: any other setting of `OstinatoConfig`, e.g. ``max_model_len=2048`` or
            ``cache={"block_size": 32}``. Environment and configuration file count as for the server.

    Raises:
        ConfigError: settings that cannot work.
        ModelError: no such model, or not one that can be run.
    """

    def __init__(self, model: str | os.PathLike[str] = DEFAULT_MODEL, **settings: Any) -> None:
        config = load_config({"model": os.fspath(model), **settings})
        self._start(build_core(config, clock=SystemClock()), config.reasoning_parser)

    @classmethod
    def from_core(cls, core: EngineCore) -> Self:
        """Around an engine that is built already and that nobody else uses."""
        llm = cls.__new__(cls)
        llm._start(core, "auto")
        return llm

    def _start(self, core: EngineCore, reasoning_parser: str) -> None:
        self._core: EngineCore | None = core
        template = core.model.chat_template
        source = None if template is None else template.source
        self._thinks: ReasoningSyntax | None = choose_reasoning(reasoning_parser, source)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one or many prompts.

        Args:
            prompts: text, token ids (a list or a NumPy array), or a list of either.
            sampling_params: for all prompts, or one for each.
            use_tqdm: show a progress bar on standard error (vLLM's name for it).

        Returns:
            One output a prompt, in order.

        Raises:
            RequestError: a prompt cannot be served; then nothing was generated.
            RequestFailedError: computing a request failed; the others are aborted.
            KeyboardInterrupt: Ctrl-C, after the current step; what ran is aborted, the engine stays usable.
        """
        return self._run(self._prompts(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's own chat template.

        What a model thinks first is told apart from its answer: see `CompletionOutput.reasoning`.

        Args and errors as for `generate`, and:

        Args:
            messages: a conversation as OpenAI has them, or a list of conversations.
            tools: JSON schemas of functions, for all conversations.

        Raises:
            InvalidRequestError: see `models.chat_encoding.encode_chat`.
        """
        if not messages:
            raise InvalidRequestError("at least one message is needed", param="messages")
        many = messages if not isinstance(messages[0], Mapping) else [messages]
        prompts: list[_Prompt] = []
        for one in many:
            ids = encode_chat(self._engine.model, cast(Sequence[Message], one), tools=tools)
            text = self._text(ids)
            thinks = reasoning_of(self._thinks, text[-END_CHARACTERS:])
            prompts.append(_Prompt(text, token_array(ids), thinks))
        return self._run(prompts, sampling_params, use_tqdm)

    def close(self) -> None:
        """Let go of model and cache; later calls raise `EngineStoppedError`.

        With a disk tier, what has no copy there is written first, for at most ``tiers.flush_seconds``.
        """
        if self._core is not None:
            self._core.close()
        self._core = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _engine(self) -> EngineCore:
        if self._core is None:
            raise EngineStoppedError("this LLM is closed")
        return self._core

    def _prompts(self, prompts: Prompt | Sequence[Prompt]) -> list[_Prompt]:
        many = [prompts] if _is_single(prompts) else prompts
        return [self._prompt(one) for one in cast(Sequence[Prompt], many)]

    def _prompt(self, prompt: Prompt) -> _Prompt:
        if not isinstance(prompt, str):
            return _Prompt(None, token_array(prompt))
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"a prompt must be valid Unicode text, without lone surrogates ({error.reason})",
                param="prompt",
            ) from None
        return _Prompt(prompt, token_array(self._engine.model.tokenizer.encode_prompt(prompt)))

    def _text(self, token_ids: Sequence[int]) -> str:
        """What the model saw, special tokens included."""
        token_bytes = self._engine.model.tokenizer.token_bytes
        return b"".join(map(token_bytes, token_ids)).decode("utf-8", "replace")

    def _run(
        self,
        prompts: Sequence[_Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = _one_each(sampling_params, len(prompts))
        jobs = {}
        for prompt, one in zip(prompts, params, strict=True):
            job = self._job(prompt, one)
            self._engine.limits.validate(job.request)
            jobs[job.request.request_id] = job
        with _progress(use_tqdm) as progress, _deferred_interrupt() as interrupted:
            try:
                self._drive(jobs, progress, interrupted)
            except BaseException:
                self._engine.abort_all()
                self._engine.take_failures()
                raise
        self._engine.check_integrity()
        return [job.output() for job in jobs.values()]

    def _job(self, prompt: _Prompt, params: SamplingParams) -> _Job:
        request = EngineRequest(
            request_id=f"llm-{next(self._ids)}",
            prompt_token_ids=prompt.token_ids,
            params=allow_reasoning(params, prompt.reasoning),
        )
        outputs = [CompletionOutput(index) for index in range(params.n)]
        return _Job(prompt, request, outputs, unfinished=params.n)

    def _drive(
        self, jobs: Mapping[str, _Job], progress: Progress, interrupted: threading.Event
    ) -> None:
        core = self._engine
        bar = progress.add_task("prompts", total=len(jobs))
        pending = deque(jobs.values())
        while pending or core.has_work:
            while pending and core.can_queue:
                core.add_request(pending.popleft().request)
            if core.is_stalled:
                core.tiers.wait(STALL_SECONDS)
            for delta in core.step():
                job = jobs[delta.request_id]
                job.add(delta)
                progress.advance(bar, job.unfinished == 0)
            for failure in core.take_failures():
                raise failure.error
            core.tiers.tend()
            if interrupted.is_set():
                raise KeyboardInterrupt


def _is_single(prompts: Prompt | Sequence[Prompt]) -> bool:
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidRequestError(
            f"sampling_params must be one for all or one for each of the {count} prompts, "
            f"not {len(params)}",
            param="sampling_params",
        )
    return params


def _progress(shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not shown,
    )


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event, since a step that is broken off half-way would corrupt the cache.

    Elsewhere than in the main thread Python delivers no signals, and nothing is to be done.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def remember(signum: int, frame: FrameType | None) -> None:
        interrupted.set()

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
