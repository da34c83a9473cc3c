"""SGLang's RadixCache: match and insert of one long prompt. Prints JSON, milliseconds.

Importing SGLang as a whole needs GPU kernels and a hundred packages, of which the tree calls none. So the files
of the tree are imported as they were installed, and whatever else they import is stood in for.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import time
import types
from array import array
from pathlib import Path

import numpy as np
import torch

PAGE_SIZE = 16
_PACKAGES = ("sglang", "sglang.srt", "sglang.srt.mem_cache")
_TREE = ("radix_cache", "base_prefix_cache", "cache_init_params", "events", "utils", "evict_policy")
_REAL = {f"sglang.srt.mem_cache.{name}" for name in _TREE} | {"sglang.srt.environ"}


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for all of SGLang but the tree: packages without their ``__init__``, modules without content."""

    def __init__(self, root):
        self._root = root

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "sglang" or name in _REAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name) if spec.name in _PACKAGES else _Module(spec.name)
        module.__path__ = [str(self._root / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module):
        pass


class _Module(types.ModuleType):
    """Every name in it is a class of its own: fit as a base, an annotation, a decorator or a default."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = ceil_align if name == "ceil_align" else type(name, (_Thing,), {})
        setattr(self, name, made)
        return made


class _Thing:
    def __init__(self, *arguments, **named):
        pass

    def __call__(self, *arguments, **named):
        return self


def ceil_align(number, unit):
    """The one helper that the tree does call: the next multiple."""
    return -(-number // unit) * unit


def main(count, seed, repeats):
    root = Path(importlib.util.find_spec("sglang").origin).parents[1]
    sys.meta_path.insert(0, _StandIns(root))
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    torch.set_num_threads(1)  # waking others for so little costs milliseconds on a busy machine
    generator = np.random.default_rng(int(seed))
    tokens = array("q", generator.integers(0, 49_152, int(count)).tolist())
    slots = torch.arange(len(tokens))
    seen = []
    for _ in range(int(repeats)):
        cache = RadixCache.create_simulated(page_size=PAGE_SIZE)
        start = time.perf_counter()
        cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
        cache.insert(InsertParams(key=RadixKey(tokens), value=slots))
        seen.append(1000 * (time.perf_counter() - start))
        found = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
        assert found.device_prefix_len >= len(tokens) - PAGE_SIZE
    print(json.dumps({"ms": seen, "what": f"pages of {PAGE_SIZE}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
