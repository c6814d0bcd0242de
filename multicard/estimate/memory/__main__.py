"""Requests as JSON from the standard input, answers as JSON to the standard output.

    python -m multicard.estimate.memory < requests.json

A request is `{"workload": "vision", "config": {...}, "facts": {...}, "device": "cuda", "memory_bytes": null}`, the
configuration as in a record. An answer is an `Active`, or a text that says why there is none.
"""

import os
import sys

import msgspec

from multicard.estimate.memory import requests
from multicard.estimate.memory.facts import ImageFacts, TextFacts
from multicard.estimate.memory.result import Active


def answer(request: requests.Request) -> Active | str:
    from multicard.estimate.memory.simulate import simulate

    config = requests.config_of(request)
    facts = msgspec.convert(request.facts, ImageFacts if request.workload == "vision" else TextFacts)
    try:
        return simulate(config, facts, request.device, request.memory_bytes)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=list[requests.Request])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # recipes print
    for request in asked:
        out.write(msgspec.json.encode(answer(request)) + b"\n")
        out.flush()
