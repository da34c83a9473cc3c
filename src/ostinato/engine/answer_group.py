"""AnswerGroup: what the core keeps of a request for n answers."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.engine.answer import Answer
from ostinato.engine.request import Request


@dataclass(slots=True)
class AnswerGroup:
    """A request for n answers: its unfinished answers, and the sequences that run for them.

    Before the fork one sequence, the leader's, stands for all answers.
    """

    answers: dict[int, Answer]
    sequences: dict[int, Request]
