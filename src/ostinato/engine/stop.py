"""Stop strings in streamed text.

Each stop string has a Knuth–Morris–Pratt matcher that knows how many of its first characters the
text ends with just now. The largest of these numbers is how much must be held back, no more and no
less; when one reaches its string's full length, the answer ends. A character costs amortised
constant time a stop string, however long the string is.

Text is looked at character by character, so the outcome does not depend on how it was cut into
deltas. The stop string that is *complete first* wins; of those complete at the same character, the
longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopChecker:
    """Looks for the stop strings of one answer and holds back what may be the beginning of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        """Args: `stop`, strings of at least one character; none at all lets all text through."""
        self._matchers = [
            _Matcher(text, borders)
            for text, borders in zip(stop, _tables(tuple(stop)), strict=True)
        ]
        self._held = ""
        self._matched: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of an answer.

        Returns:
            What may be shown now, and the stop string that ended the answer, if one did. Then the
            text ends right before it, and later calls show nothing and return the same stop string.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._matchers:
            return text, None
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            complete = [m.pattern for m in self._matchers if m.advance(character)]
            if complete:
                self._matched = max(complete, key=len)
                self._held = ""
                return pending[: end - len(self._matched)], self._matched
        shown = len(pending) - max(matcher.length for matcher in self._matchers)
        self._held = pending[shown:]
        return pending[:shown], None

    def flush(self) -> str:
        """When the answer ends for another reason: the text held back, once."""
        held, self._held = self._held, ""
        for matcher in self._matchers:
            matcher.reset()
        return held


class _Matcher:
    """Knuth, Morris, Pratt 1977 for one stop string.

    Attributes:
        pattern: the stop string.
        length: characters of `pattern` that the text ends with, always the most possible.
    """

    def __init__(self, pattern: str, borders: tuple[int, ...]) -> None:
        self.pattern = pattern
        self.length = 0
        self._borders = borders

    def advance(self, character: str) -> bool:
        """Take one character; True if the text now ends with the whole stop string."""
        if self.length == len(self.pattern):
            self.length = self._borders[-1]
        while self.length and self.pattern[self.length] != character:
            self.length = self._borders[self.length - 1]
        if self.pattern[self.length] == character:
            self.length += 1
        return self.length == len(self.pattern)

    def reset(self) -> None:
        self.length = 0


@lru_cache(maxsize=64)
def _tables(stop: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The matchers' tables, shared by all answers with these stop strings: those of one call come at once."""
    return tuple(_borders(pattern) for pattern in stop)


def _borders(pattern: str) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[length] != pattern[position]:
            length = borders[length - 1]
        if pattern[length] == pattern[position]:
            length += 1
        borders[position] = length
    return tuple(borders)
