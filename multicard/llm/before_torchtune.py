"""Import what a tuning rank needs before torchtune.

Importing torchtune starts CUDA, and a process with CUDA must not be forked. Before CUDA ranks are
forked, only these modules are imported.
"""

import os

# The controller has downloaded everything, so ranks need no network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

import datasets  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.nn.attention.flex_attention  # noqa: F401
