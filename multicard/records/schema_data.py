"""The structs of a record about its data: content, rows, and the evaluation of held-out rows."""

from typing import Annotated

from msgspec import Struct

from multicard.records.schema_types import Count, Int, Number, Share


class TextRows(Struct):
    """Numbers of rows of text before packing, and what `max_seq_len` did to them."""

    read: Annotated[Count, "all rows of the data set, or of its sample"] = None
    cut: Annotated[
        Count, "rows that were cut because they exceed max_seq_len; a pair counts once"
    ] = None
    left_out: Annotated[
        Count,
        "cut rows that were dropped: no label remained, one answer of a pair had none, or both"
        " answers became the same",
    ] = None
    broken: Annotated[
        Count, "rows that dataset.skip_broken dropped as unreadable; null without that key"
    ] = None
    equal: Annotated[
        Count, "pairs that were dropped because both answers are equal; null for other rows"
    ] = None
    last_alone: Annotated[
        Count,
        "rows of which only the last answer is learnt, because the chat template rewrites earlier"
        " answers",
    ] = None
    sequences: Annotated[
        Count, "sequences that the remaining rows are packed into; null without packing"
    ] = None


class Evaluation(Struct):
    """One evaluation of the held-out rows, over all ranks; each row counts once."""

    epoch: Annotated[Count, "from 0"] = None
    step: Annotated[Count, "optimiser steps that the run had taken, over all epochs"] = None
    evaluate_s: Annotated[Number, "seconds on the slowest rank"] = None
    ended_s: Annotated[
        Number, "seconds from the start of training to its end, including evaluations"
    ] = None
    loss: Annotated[
        Number, "mean over all labelled tokens in nats; for pairs, the mean DPO loss"
    ] = None
    ranked_right: Annotated[
        Share, "share of pairs whose chosen answer has the higher reward; null for other rows"
    ] = None
    margin: Annotated[
        Number,
        "mean reward of the chosen answer minus that of the rejected one; null for other rows",
    ] = None


class InInt4Loss(Struct):
    """The held-out rows, scored with int4 weights and int8 activations, as torchao converts the
    model after training.
    """

    loss: Annotated[Number, "mean over all labelled tokens in nats; null if it is not finite"] = (
        None
    )
    groupsize: Annotated[Count, "number of weights that share a scale"] = None
    evaluate_s: Annotated[Number, "seconds; no other time of the run includes them"] = None


class HeldOut(Struct):
    """Rows that were not trained on, and how well the model predicts them."""

    rows: Annotated[Count, "number of rows or pairs that are evaluated"] = None
    tokens: Annotated[Count, "labelled tokens of these rows"] = None
    also_trained: Annotated[
        Count, "number of these rows that are equal to a row that is trained on"
    ] = None
    evaluations: Annotated[
        list[Evaluation], "one entry after each epoch, and after every `eval_steps` steps"
    ] = []
    in_int4: Annotated[
        InInt4Loss | None, "after the last evaluation, with method=qat and full; else null"
    ] = None
    int4_problem: Annotated[
        str | None, "why a rank could not score the rows in int4, in one line"
    ] = None


class Ignored(Struct):
    """Content that was found next to the data but not read."""

    what: Annotated[
        str,
        "file extension, folder, column or key of messages, as in .heic, notes/, id or"
        " messages.name",
    ]
    count: Annotated[Int, "number of files, or of rows that have it"]


class RepeatedImages(Struct):
    """How many of the images that the run reads are in the data more than once, with the same path
    or the same bytes.
    """

    in_both: Annotated[Int, "images that are both trained and tested on"]
    two_labels: Annotated[Int, "images that occur with different labels"]
    tested: Annotated[Int, "images that are tested on"]
    compared: Annotated[
        Int, "images that were compared with all others; very large data sets are sampled"
    ]
    images: Annotated[Int, "all images"]

    @property
    def share_in_both(self) -> float:
        """The share of the test images that are also trained on."""
        return self.in_both / self.tested if self.tested else 0.0


class DataContent(Struct):
    """The content of the data, independent of where it is stored: names, sizes and bytes. Above
    64 MiB or 1,024 files, only evenly spaced pieces of the bytes are hashed
    (`multicard/records/content.py`).
    """

    fingerprint: Annotated[str, "12 hex digits over all parts; equal means the same data"]
    parts: Annotated[
        dict[str, str], "digits of dataset, decoding (photographs), tokenizer and weights"
    ]
    bytes: Annotated[Int, "size of all parts"]
    hashed_bytes: Annotated[Int, "number of these bytes that the digits cover"]
    changed: Annotated[
        str | None, "parts that had changed when the ranks ended; ranks may have read both versions"
    ] = None
    repeated: Annotated[
        RepeatedImages | None, "with dataset=images; null if the images were not compared"
    ] = None
