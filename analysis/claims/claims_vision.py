"""What arXiv 2503.15252 says of training MobileNetV2."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.claims import measures as m
from analysis.claims.claim import HARDLY, LEVEL, NO_PLACE, Claim
from analysis.claims.rules import (
    FASTER,
    LESS,
    POINTS,
    TIMES,
    Bound,
    Rule,
    both,
    contrast,
    each_with_fewest,
    fewer_gain,
    fewest_with_each,
    neighbours,
    versus,
)

PAPER = "2503.15252"
LEAST_PX = 300  # from which 4 GPUs pay
ACCURACY = -1.0  # points: seeds differ by about as much


def _few(cell: Mapping[str, Any]) -> bool:
    return cell["gpus"] <= 2


def _many(cell: Mapping[str, Any]) -> bool:
    return cell["gpus"] in (3, 4)


def _dataloader(cell: Mapping[str, Any]) -> bool:
    return cell["loader"] == "torch"


def _large(cell: Mapping[str, Any]) -> bool:
    return cell["dataset.image_size"] >= LEAST_PX


def _small(cell: Mapping[str, Any]) -> bool:
    return not _large(cell)


def _fourth(found: Sequence[Any]) -> list[tuple[Any, Any]]:
    """4 GPUs with the number before them."""
    return [(few, many) for few, many in neighbours(found) if many == 4]


def _by_strategy(strategy: str, bound: Bound) -> Rule:
    only = lambda cell: cell["strategy"] == strategy  # noqa: E731
    return contrast("gpus", fewest_with_each, m.time, FASTER, bound, only)


CLAIMS = (
    Claim(
        "fp16-over-fp64",
        "fp16 trains 110 to 152 % faster than fp64",
        PAPER,
        "Table 2",
        "152 % faster on 1 GPU, 110 % on 4",
        "time in fp64 / time in fp16 - 1 is above 110 %, their least, at each number of GPUs; more is no contradiction",
        "table2",
        contrast("precision", [("fp64", "fp16")], m.time, FASTER, Bound(over=110.0)),
    ),
    Claim(
        "fp32-over-fp64",
        "fp32 trains faster than fp64",
        PAPER,
        "Table 2",
        "",
        "time in fp64 / time in fp32 - 1 is above 0 at each number of GPUs",
        "table2",
        contrast("precision", [("fp64", "fp32")], m.time, FASTER, Bound(over=0.0)),
    ),
    Claim(
        "fp16-over-fp32",
        "fp16 trains faster than fp32",
        PAPER,
        "Table 2",
        "",
        "time in fp32 / time in fp16 - 1 is above 0 at each number of GPUs",
        "table2",
        contrast("precision", [("fp32", "fp16")], m.time, FASTER, Bound(over=0.0)),
    ),
    Claim(
        "fp16-accuracy",
        "Accuracy does not suffer from fp16",
        PAPER,
        NO_PLACE,
        "",
        "accuracy in fp16 is less than 1 point below that in fp32 and in fp64, at each number of GPUs (1 point: about "
        "what seeds differ by)",
        "table2",
        contrast("precision", [("fp16", "fp32"), ("fp16", "fp64")], m.accuracy, POINTS, Bound(over=ACCURACY)),
    ),
    Claim(
        "gpus-accuracy",
        "Accuracy does not suffer from more GPUs",
        PAPER,
        NO_PLACE,
        "",
        "accuracy on several GPUs is less than 1 point below that on one, in each precision",
        "table2",
        contrast("gpus", each_with_fewest, m.accuracy, POINTS, Bound(over=ACCURACY)),
    ),
    Claim(
        "precision-volume",
        "What moves to the device halves with each halving of the precision",
        PAPER,
        "host-to-device times; " + NO_PLACE,
        "226, 104 and 50 s of copies in fp64, fp32 and fp16",
        "bytes to the devices in fp64 / in fp32, and in fp32 / in fp16, are between 1.9 and 2.1 (labels stay as they "
        "are); the bytes, not the time of the copies, which these runs do not profile",
        "table2",
        contrast("precision", [("fp64", "fp32"), ("fp32", "fp16")], m.to_device, TIMES, Bound(1.9, 2.1)),
    ),
    Claim(
        "pinned-gain",
        "Pinned memory saves 16 to 30 % of the time",
        PAPER,
        "Table 3",
        "16 to 30 %",
        "1 - time with pinned memory / time without is above 16 %, their least, at each number of GPUs; more is no "
        "contradiction",
        "table3",
        contrast("pin_memory", [(False, True)], m.time, LESS, Bound(over=16.0)),
    ),
    Claim(
        "pinned-gain-by-gpus",
        "Pinned memory saves less with more GPUs",
        PAPER,
        "Table 3",
        "",
        "the share that pinned memory saves on the fewest GPUs less that on the most is above 0",
        "table3",
        fewer_gain("pin_memory", False, True, m.time),
    ),
    Claim(
        "ddp-ds-scales",
        "DDP-DS, a shard for each GPU, trains faster with more GPUs",
        PAPER,
        "Fig. 1",
        "",
        "time on one GPU / time on several - 1 is above 0, at each number of GPUs",
        "strategies",
        _by_strategy("ddp_ds", Bound(over=0.0)),
    ),
    Claim(
        "ddp-rr-does-not",
        "DDP-RR does not train faster with more GPUs",
        PAPER,
        "Fig. 1",
        "",
        "time on one GPU / time on several - 1 is below 10 %, at each number of GPUs",
        "strategies",
        _by_strategy("ddp_rr", Bound(under=HARDLY)),
    ),
    Claim(
        "ddp-does-not",
        "DDP, where each GPU trains on everything, does not train faster with more GPUs",
        PAPER,
        "Fig. 1",
        "",
        "time on one GPU / time on several - 1 is below 10 %, at each number of GPUs",
        "strategies",
        _by_strategy("ddp", Bound(under=HARDLY)),
    ),
    Claim(
        "large-images-pay",
        "From 300 px on, time falls up to 4 GPUs",
        PAPER,
        "Fig. 2",
        "",
        "at each size from 300 px on, each GPU more makes it faster: time before / time with it - 1 is above 0, "
        "up to 4",
        "image_size",
        both(*(contrast("gpus", [pair], m.time, FASTER, Bound(over=0.0), _large) for pair in ((1, 2), (2, 3), (3, 4)))),
    ),
    Claim(
        "small-images-do-not",
        "Below 300 px, 4 GPUs do not pay",
        PAPER,
        "Fig. 2",
        "",
        "at each size below 300 px, 4 GPUs are faster than the next fewer by less than 5 %",
        "image_size",
        contrast("gpus", _fourth, m.time, FASTER, Bound(under=LEVEL), _small),
    ),
    Claim(
        "pinned-copies",
        "With pinned memory, the time of copies to the device falls",
        PAPER,
        "Figs. 3, 4",
        "85 to 101 s to 16 s at 500 px, 3.1 to 3.6 s to 0.66 s at 100 px",
        "time of host-to-device copies without pinned memory / with it, a profiled step and rank, is above 1 at each "
        "size and number of GPUs",
        "vision_metrics",
        contrast("pin_memory", [(False, True)], m.copying, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "pinned-synchronises",
        "With pinned memory, cudaStreamSynchronize takes longer",
        PAPER,
        "Figs. 3, 4",
        "1.3 s to 18 s",
        "time in cudaStreamSynchronize with pinned memory / without, a profiled step and rank, is above 1",
        "vision_metrics",
        contrast("pin_memory", [(True, False)], m.synchronising, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "nccl-by-gpus",
        "NCCL's time grows with the number of GPUs",
        PAPER,
        "Figs. 3, 4",
        "7, 39 and 63 s",
        "time in collectives on more GPUs / on the fewest, a profiled step and rank, is above 1",
        "vision_metrics",
        contrast("gpus", each_with_fewest, m.communicating, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "dali-over-dataloader",
        "On photographs, DALI trains faster than PyTorch's DataLoader",
        PAPER,
        "Figs. 6 to 8",
        "",
        "time with the DataLoader / time with DALI - 1 is above 0 at each size and number of GPUs",
        "loaders",
        contrast("loader", [("torch", "dali")], m.time, FASTER, Bound(over=0.0)),
    ),
    Claim(
        "dataloader-pauses",
        "On 3 and 4 GPUs the DataLoader loses by pauses between epochs",
        PAPER,
        "Figs. 6 to 8",
        "",
        "on 3 and 4 GPUs, time with the DataLoader / with DALI is above 1, and below 1.05 where the time to the first "
        "batch of each epoch is taken off both",
        "loaders",
        both(
            contrast("loader", [("torch", "dali")], m.time, TIMES, Bound(over=1.0), _many),
            contrast("loader", [("torch", "dali")], m.time_without_pauses, TIMES, Bound(under=1 + LEVEL / 100), _many),
        ),
    ),
    Claim(
        "nhwc-level-with-dali",
        "NHWC brings the DataLoader level with DALI on 1 and 2 GPUs",
        PAPER,
        "Fig. 9",
        "",
        "on 1 and 2 GPUs, time with the DataLoader in NHWC / with DALI is below 1.05, in either layout of DALI's "
        "(theirs is not printed)",
        "layout",
        both(
            *(
                versus(
                    {"loader": "torch", "layout": "nhwc"},
                    {"loader": "dali", "layout": layout},
                    m.time,
                    TIMES,
                    Bound(under=1 + LEVEL / 100),
                    _few,
                )
                for layout in ("nchw", "nhwc")
            )
        ),
    ),
    Claim(
        "nhwc-over-nchw",
        "With the DataLoader, NHWC trains faster than NCHW",
        PAPER,
        "Fig. 9",
        "",
        "time in NCHW / time in NHWC - 1 is above 0 at each number of GPUs",
        "layout",
        contrast("layout", [("nchw", "nhwc")], m.time, FASTER, Bound(over=0.0), _dataloader),
    ),
    Claim(
        "loss-alike",
        "The loss falls alike whatever the precision and with and without pinned memory",
        PAPER,
        "Fig. 5",
        "",
        "training loss in fp64 and fp16 / in fp32, and without pinned memory / with it, is between 0.9 and 1.1 in the "
        "geometric mean over the epochs",
        "loss_curves",
        both(
            contrast("precision", [("fp64", "fp32"), ("fp16", "fp32")], m.loss, TIMES, Bound(0.9, 1.1)),
            contrast("pin_memory", [(False, True)], m.loss, TIMES, Bound(0.9, 1.1)),
        ),
    ),
)
