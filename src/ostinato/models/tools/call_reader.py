"""One call, ``{"name": …, "arguments": {…}}``, read character by character."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

from ostinato.models.tools.json_scan import WHITESPACE, Scan, ValueScanner

_NAME = "name"


class Progress(Enum):
    """What a character did to the call."""

    MORE = auto()
    DONE = auto()
    BAD = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """What came of a character.

    Attributes:
        progress: whether the call goes on.
        started: the tool's name, once, when the call is certain: a declared name and an object of arguments.
        arguments: what may be shown of the arguments now.
    """

    progress: Progress
    started: str | None = None
    arguments: str = ""


_MORE = Step(Progress.MORE)
_BAD = Step(Progress.BAD)


class CallReader:
    """Reads the members of a call in any order and with any white space.

    Args:
        names: of the declared tools; a call to another is malformed.
        arguments_key: the member that holds the arguments.
    """

    def __init__(self, names: Collection[str], arguments_key: str) -> None:
        self._names = names
        self._arguments_key = arguments_key
        self._take: Callable[[str], Step] = self._open
        self._seen: set[str] = set()
        self._key = ""
        self._value = ""
        self._scanner = ValueScanner()
        self._name: str | None = None
        self._pending = ""
        self._started = False

    def feed(self, character: str) -> Step:
        """Take one character; after DONE or BAD no more."""
        return self._take(character)

    def _open(self, character: str) -> Step:
        if character in WHITESPACE:
            return _MORE
        self._take = self._before_first_key
        return _MORE if character == "{" else _BAD

    def _before_first_key(self, character: str) -> Step:
        return Step(Progress.BAD) if character == "}" else self._before_key(character)

    def _before_key(self, character: str) -> Step:
        if character in WHITESPACE:
            return _MORE
        self._scanner, self._value = ValueScanner(), ""
        self._take = self._in_key
        return self._in_key(character) if character == '"' else _BAD

    def _in_key(self, character: str) -> Step:
        self._value += character
        scan = self._scanner.feed(character)
        if scan is Scan.DONE:
            self._key = json.loads(self._value)
            if self._key in self._seen:
                return _BAD
            self._seen.add(self._key)
            self._take = self._before_value
        return _BAD if scan is Scan.BAD else _MORE

    def _before_value(self, character: str) -> Step:
        if character in WHITESPACE:
            return _MORE
        self._scanner, self._value = ValueScanner(), ""
        self._take = self._value_start
        return _MORE if character == ":" else _BAD

    def _value_start(self, character: str) -> Step:
        if character in WHITESPACE:
            return _MORE
        wanted = {_NAME: '"', self._arguments_key: "{"}.get(self._key)
        if wanted is not None and character != wanted:
            return _BAD
        self._take = self._in_arguments if self._key == self._arguments_key else self._in_value
        return self._take(character)

    def _in_value(self, character: str) -> Step:
        scan = self._scanner.feed(character)
        if scan is Scan.PAST:
            self._take = self._after_value
            return self._after_value(character)
        if self._key == _NAME:
            self._value += character
        if scan is not Scan.DONE:
            return _BAD if scan is Scan.BAD else _MORE
        self._take = self._after_value
        if self._key != _NAME:
            return _MORE
        name: str = json.loads(self._value)
        if name not in self._names:
            return _BAD
        self._name = name
        return self._show("") if self._pending else _MORE

    def _in_arguments(self, character: str) -> Step:
        scan = self._scanner.feed(character)
        if scan is Scan.BAD:
            return _BAD
        if scan is Scan.DONE:
            self._take = self._after_value
        return self._show(character)

    def _show(self, arguments: str) -> Step:
        """Arguments that come before the name wait for it."""
        self._pending += arguments
        if self._name is None:
            return _MORE
        started = None if self._started else self._name
        self._started = True
        shown, self._pending = self._pending, ""
        return Step(Progress.MORE, started, shown)

    def _after_value(self, character: str) -> Step:
        if character in WHITESPACE:
            return _MORE
        if character == "}":
            return Step(Progress.DONE) if self._started else _BAD
        self._take = self._before_key
        return _MORE if character == "," else _BAD
