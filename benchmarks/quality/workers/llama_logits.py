"""Runs in llama.cpp's environment: token ids in, raw float32 logits of all positions out, until end of input.

    in    int32 n, then n int32 token ids
    out   n × vocabulary float32

The xllamacpp wheel exports llama.cpp's C API, though its Python side does not. Parameter structures are passed
through as bytes of which only the four leading fields of `llama_context_params` are touched; those have stood
at its beginning since the API has had them, and are checked against their known defaults.
"""

import ctypes
import os
import sys

import numpy as np
import xllamacpp

_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1}


class Opaque(ctypes.Structure):
    """Larger than any parameter structure. The x86-64 and AArch64 conventions pass those in memory."""

    _fields_ = [*((name, ctypes.c_uint32) for name in _DEFAULTS), ("rest", ctypes.c_uint8 * 496)]


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def load_library():
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    pointer = ctypes.c_void_p
    signatures = {
        "llama_model_default_params": (Opaque, []),
        "llama_context_default_params": (Opaque, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Opaque]),
        "llama_init_from_model": (pointer, [pointer, Opaque]),
        "llama_set_n_threads": (None, [pointer, ctypes.c_int32, ctypes.c_int32]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (ctypes.c_int32, [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_batch_init": (Batch, [ctypes.c_int32] * 3),
        "llama_batch_free": (None, [Batch]),
        "llama_decode": (ctypes.c_int32, [pointer, Batch]),
        "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Context:
    """A model and a context of `window` tokens."""

    def __init__(self, path, window, threads):
        self._library = library = load_library()
        library.llama_backend_init()
        model = library.llama_model_load_from_file(
            path.encode(), library.llama_model_default_params()
        )
        params = library.llama_context_default_params()
        for name, value in _DEFAULTS.items():
            if getattr(params, name) != value:
                raise RuntimeError(f"this llama.cpp lays out its parameters otherwise ({name})")
        params.n_ctx = params.n_batch = params.n_ubatch = window
        self._context = library.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama_init_from_model failed")
        library.llama_set_n_threads(self._context, threads, threads)
        self.vocab = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))

    def logits(self, token_ids):
        """(T, vocabulary), a view that the next call overwrites."""
        library, count = self._library, len(token_ids)
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        batch = library.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for at, token in enumerate(token_ids.tolist()):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, at, 1
            batch.seq_id[at][0], batch.logits[at] = 0, 1
        status = library.llama_decode(self._context, batch)
        library.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode failed with {status}")
        values = library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(values, shape=(count, self.vocab))


def main(path, window, threads):
    # llama.cpp may print; what it prints must not end up among the logits.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    context = Context(path, int(window), int(threads))
    while header := sys.stdin.buffer.read(4):
        count = int(np.frombuffer(header, dtype=np.int32)[0])
        token_ids = np.frombuffer(sys.stdin.buffer.read(4 * count), dtype=np.int32)
        out.write(context.logits(token_ids).tobytes())
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
