"""Imports of a tuning rank before torchtune, whose import starts
CUDA: CUDA ranks are forked with these alone.
"""

import os

# the controller has fetched what is needed; ranks open no connection
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

import datasets  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.nn.attention.flex_attention  # noqa: F401
