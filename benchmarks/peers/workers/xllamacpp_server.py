"""llama.cpp's own HTTP server, from the xllamacpp wheel, in a process of its own. Prints its URL."""

import signal
import sys

import xllamacpp


def main(model, threads, slots, context):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = int(slots)
    params.n_ctx = int(context)
    params.kv_unified = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)
    print(f"ready on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    # Blocked before the server's threads exist, so that sigwait is the one who takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(*sys.argv[1:])
