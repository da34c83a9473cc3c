"""A strict JSON reader that takes one character at a time and keeps nothing but its place (RFC 8259).

It says of every character whether the text so far can still become one JSON value, except that numbers and
words are judged at their end. That is what streaming the arguments of a call needs.
"""

from __future__ import annotations

import re
from enum import Enum, auto

WHITESPACE = " \t\n\r"
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)
_SCALAR_CHARACTERS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_SCALAR_STARTS = frozenset("-0123456789tfn")
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_HEX_DIGITS = 4


class Scan(Enum):
    """What a character was."""

    MORE = auto()
    """Part of the value, which goes on."""
    DONE = auto()
    """The value's last character."""
    PAST = auto()
    """The first character behind the value."""
    BAD = auto()
    """No JSON value begins like this."""


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class ValueScanner:
    """Reads one value. After anything but MORE it must not be fed again."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._expect = _Expect.VALUE
        self._scalar = ""
        self._in_string = False
        self._is_key = False
        self._escaped = False
        self._hex_left = 0

    def feed(self, character: str) -> Scan:
        """Take one character."""
        if self._in_string:
            return self._in_text(character)
        if self._scalar:
            if character in _SCALAR_CHARACTERS:
                self._scalar += character
                return Scan.MORE
            if _SCALAR.fullmatch(self._scalar) is None:
                return Scan.BAD
            self._scalar = ""
            if self._end_value() is Scan.DONE:
                return Scan.PAST
        if character in WHITESPACE:
            return Scan.MORE
        return self._structure(character)

    def _in_text(self, character: str) -> Scan:
        if self._hex_left:
            self._hex_left -= 1
            return Scan.MORE if character in _HEX else Scan.BAD
        if self._escaped:
            self._escaped = False
            if character == "u":
                self._hex_left = _HEX_DIGITS
                return Scan.MORE
            return Scan.MORE if character in _ESCAPES else Scan.BAD
        if character == "\\":
            self._escaped = True
            return Scan.MORE
        if character == '"':
            self._in_string = False
            if self._is_key:
                self._expect = _Expect.COLON
                return Scan.MORE
            return self._end_value()
        return Scan.BAD if character < " " else Scan.MORE

    def _structure(self, character: str) -> Scan:
        expect = self._expect
        if expect is _Expect.COLON:
            self._expect = _Expect.VALUE
            return Scan.MORE if character == ":" else Scan.BAD
        if expect is _Expect.COMMA_OR_END:
            if character == self._closers[-1]:
                return self._close()
            self._expect = _Expect.KEY if self._closers[-1] == "}" else _Expect.VALUE
            return Scan.MORE if character == "," else Scan.BAD
        if expect in (_Expect.KEY, _Expect.KEY_OR_END):
            if character == "}" and expect is _Expect.KEY_OR_END:
                return self._close()
            self._in_string = self._is_key = character == '"'
            return Scan.MORE if self._in_string else Scan.BAD
        if character == "]" and expect is _Expect.VALUE_OR_END:
            return self._close()
        return self._begin_value(character)

    def _begin_value(self, character: str) -> Scan:
        if character == '"':
            self._in_string, self._is_key = True, False
        elif character == "{":
            self._closers.append("}")
            self._expect = _Expect.KEY_OR_END
        elif character == "[":
            self._closers.append("]")
            self._expect = _Expect.VALUE_OR_END
        elif character in _SCALAR_STARTS:
            self._scalar = character
        else:
            return Scan.BAD
        return Scan.MORE

    def _close(self) -> Scan:
        self._closers.pop()
        return self._end_value()

    def _end_value(self) -> Scan:
        self._expect = _Expect.COMMA_OR_END
        return Scan.MORE if self._closers else Scan.DONE
