"""Every exception that Ostinato raises on purpose.

    OstinatoError
    ├── ConfigError               a setting, or two settings together, cannot work
    ├── ModelError
    │   ├── ModelNotFoundError    no such name, file or folder; says how to get it
    │   ├── ModelFormatError      the file is damaged or of a kind we cannot read
    │   └── UnsupportedModelError readable, but of an architecture we do not run
    ├── RequestError              the caller's mistake: becomes a 4xx
    │   ├── InvalidRequestError   a value is wrong; says what would be right
    │   ├── ContextLengthError    longer than the model's context
    │   └── CapacityError         can never fit the K/V pool; says the largest that would
    ├── EngineStoppedError        the engine is shutting down or has died
    ├── EngineOverloadedError     too many requests wait already: becomes a 503
    ├── RequestFailedError        computing this one request failed; others go on: becomes a 500
    │   └── GrammarFailedError    since nothing can follow the grammar it brought: becomes a 400
    ├── LedgerError               the ledger's database cannot be reached, read or written
    ├── GrammarError              an answer can no longer follow the grammar that it must match
    ├── NonFiniteLogitsError      the model produced NaN or infinite logits for some rows of a batch
    └── CacheIntegrityError       an invariant of the cache is broken: a bug of ours

A `RequestError` carries `param`, the name of the offending field, and `code`, a stable word for programs.
"""

from __future__ import annotations


class OstinatoError(Exception):
    """Root of the tree; catch it to catch everything we raise on purpose."""


class ConfigError(OstinatoError):
    """A setting is wrong, or two settings cannot work together."""


class UnsupportedKernelsError(ConfigError):
    """The kernels that were chosen cannot run here, or not this model; others can."""


class ModelError(OstinatoError):
    """Something about a model's files."""


class ModelNotFoundError(ModelError):
    """No model under this name or path."""


class ModelFormatError(ModelError):
    """A model file is damaged, incomplete or not in a format we read."""


class UnsupportedModelError(ModelError):
    """The file is sound, but the architecture or a feature of it is not supported."""


class RequestError(OstinatoError):
    """The request cannot be served as it stands.

    Attributes:
        param: name of the offending field as the caller wrote it, or None.
        code: stable machine-readable word, e.g. ``context_length_exceeded``.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequestError(RequestError):
    """A field has a value that is not allowed."""

    code = "invalid_value"


class ContextLengthError(RequestError):
    """Prompt plus requested output is longer than the model's context."""

    code = "context_length_exceeded"


class CapacityError(RequestError):
    """The request alone is larger than the whole K/V pool."""

    code = "kv_capacity_exceeded"


class EngineStoppedError(OstinatoError):
    """The engine no longer takes or finishes requests."""


class EngineOverloadedError(OstinatoError):
    """Too many requests are waiting; the same request may succeed later."""


class RequestFailedError(OstinatoError):
    """A fault of ours while this request was computed. The engine goes on with the others."""


class GrammarFailedError(RequestFailedError):
    """The request's own grammar compiles, but cannot be followed to the end; see `GrammarError`."""


class LedgerError(OstinatoError):
    """The ledger's database cannot be reached, read or written. A request never sees it."""


class GrammarError(OstinatoError):
    """An answer cannot go on as its grammar wants, e.g. since that has become too complex to follow."""


class NonFiniteLogitsError(OstinatoError):
    """The model produced logits that are NaN, infinite or beyond 1e30.

    The weights are damaged or a kernel is wrong. Raised before anything was drawn, so the other
    rows can be sampled again without loss.

    Attributes:
        rows: indices of the rows that are affected.
    """

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(f"the model produced NaN or infinite logits in batch rows {list(rows)}")
        self.rows = rows


class NonFiniteKVError(OstinatoError):
    """K or V of a token is NaN, or too large for the K/V memory's type (65,504 in fp16).

    Whatever attended to it would be wrong, and need not look so. fp32 K/V may hold it.
    """

    def __init__(self) -> None:
        super().__init__(
            "K or V of a token is NaN, or too large for the K/V memory's type: the weights are damaged, "
            "or the model needs --kv-dtype fp32"
        )


class CacheIntegrityError(OstinatoError):
    """An invariant of the cache does not hold. Raised in tests, counted in production."""
