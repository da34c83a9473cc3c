"""vLLM's chain of block hashes over one long prompt, with its own functions. Prints JSON, milliseconds."""

import json
import sys
import time

import numpy as np

BLOCK_SIZE = 16


def main(count, seed, repeats):
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash

    init_none_hash(sha256)
    tokens = np.random.default_rng(int(seed)).integers(0, 49_152, int(count)).tolist()
    seen = []
    for _ in range(int(repeats)):
        start = time.perf_counter()
        parent = None
        for at in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
            parent = hash_block_tokens(sha256, parent, tokens[at : at + BLOCK_SIZE], None)
        seen.append(1000 * (time.perf_counter() - start))
    print(json.dumps({"ms": seen, "what": "sha256 chain alone, blocks of 16, no lookup"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
