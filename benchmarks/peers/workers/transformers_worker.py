"""transformers' generate() in float32, static batches, no reuse between calls. Lines of `worker_engine.py`."""

import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class Pieces(BaseStreamer):
    """Says each step's tokens; the first `put` is the prompt itself."""

    def __init__(self):
        self.prompt_seen = False

    def put(self, value):
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        for i in range(value.reshape(-1).shape[0]):
            say({"i": i, "tokens": 1})

    def end(self):
        pass


def main(path, threads):
    torch.set_num_threads(int(threads))
    folder, name = os.path.split(path)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    say({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        ids = torch.tensor(job["prompts"])  # all of one length
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=job["max_tokens"],
                do_sample=False,
                streamer=Pieces(),
            )
        say({"done": True})


def say(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
