"""OpenVINO GenAI's ContinuousBatchingPipeline on a GGUF file. Speaks the lines of `worker_engine.py`."""

import json
import sys

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

CACHE_GB = 2


def main(model, threads):
    scheduler = SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.cache_size = CACHE_GB
    options = {"INFERENCE_NUM_THREADS": int(threads)}
    pipeline = ContinuousBatchingPipeline(model, scheduler, "CPU", options)
    say({"ready": True})
    next_id = 0
    for line in sys.stdin:
        job = json.loads(line)
        config = GenerationConfig()
        config.max_new_tokens = job["max_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        handles = []
        for prompt in job["prompts"]:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(next_id, ids, config))
            next_id += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for i, handle in enumerate(handles):
                while handle.can_read():
                    count = sum(len(part.generated_ids) for part in handle.read().values())
                    say({"i": i, "tokens": count})
        say({"done": True})


def say(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
