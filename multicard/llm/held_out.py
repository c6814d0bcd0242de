"""Measure the loss of held-out rows.

The result is the same with each engine, on any number of ranks, with and without packing. Each row
is scored once and unpacked: rank r scores the rows r, r + ranks, and so on. All ranks must call the
same collectives of FSDP, so a rank with fewer batches scores a row without labels at the end.
Losses are summed in float64 in the order of the rows, whichever rank scored them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import chain
from math import ceil, isfinite
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.nn.functional import logsigmoid
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX, padded_collate_dpo, padded_collate_sft

from multicard.llm.collectives import ReceivedBytes
from multicard.llm.labelled_rows import LabelledRows
from multicard.llm.no_trace import without_trace
from multicard.ranks.process import Rank
from multicard.records import held_out, run_folder
from multicard.records.held_out import INT4_LOSS, LOSS
from multicard.records.schema_data import HeldOut

LOSSES = held_out.FILE  # File in the run folder with the loss of each row in the last evaluation.
Row = dict[str, Any]
NO_LABEL = {"tokens": [1, 1], "labels": [CROSS_ENTROPY_IGNORE_IDX, CROSS_ENTROPY_IGNORE_IDX]}
NO_LABELS = {
    "chosen_input_ids": NO_LABEL["tokens"],
    "chosen_labels": NO_LABEL["labels"],
    "rejected_input_ids": NO_LABEL["tokens"],
    "rejected_labels": NO_LABEL["labels"],
}


class Scorer(Protocol):
    """The methods of an engine that an evaluation needs. See `tuning_engine.TuningEngine`."""

    model: torch.nn.Module

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor: ...

    def reference(self) -> AbstractContextManager[Any]: ...

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]: ...


class EvaluationResult(NamedTuple):
    """The result of an evaluation.

    Attributes:
        loss: The loss in nats for a labelled token, or the mean DPO loss of the pairs.
        ranked_right: Share of pairs whose chosen answer has the higher reward. A tie counts as
            wrong: before the first step, both rewards are 0. None if the rows are not pairs.
        margin: Mean of the chosen answer's reward minus the rejected answer's. None if the rows
            are not pairs.
    """

    loss: float
    ranked_right: float | None = None
    margin: float | None = None

    @property
    def is_finite(self) -> bool:
        return isfinite(self.loss) and isfinite(self.margin or 0.0)


class Evaluator:
    """Scores held-out rows with the current weights of the model.

    Args:
        rows: Rows with labels. Each rank tokenizes its own rows once.
        pad_id: The token id of padding.
        traffic: Counts the bytes of the training's collectives. It pauses during an evaluation.
        beta: DPO's beta, or None if the rows are not pairs.
    """

    def __init__(
        self,
        rank: Rank,
        engine: Scorer,
        rows: LabelledRows,
        batch_size: int,
        pad_id: int,
        traffic: ReceivedBytes,
        beta: float | None = None,
    ) -> None:
        self.rank = rank
        self.engine = engine
        self.pad_id = pad_id
        self.beta = beta
        self.traffic = traffic
        self.numbers = rows.column("row")
        self.batches = batches_of_rank(len(rows), rank.world_size, rank.rank, batch_size)
        self.rows: dict[int, Row] = {
            index: rows[index] for index in chain.from_iterable(self.batches)
        }
        self.columns: dict[str, list[float]] = {}  # Columns of the file with each row's loss.
        self.content = HeldOut(rows=len(rows), also_trained=sum(rows.column("is_trained")))

    def evaluate(self, folder: Path) -> EvaluationResult:
        """Score all rows, and write each row's loss to the folder on rank 0.

        All ranks must call this together.
        """
        losses, tokens, margins = self._scores().T
        self.content.tokens = int(tokens.sum())
        token_counts = tokens if self.beta is None else torch.ones_like(tokens)
        self.columns = {
            "row": self.numbers,
            LOSS: losses.tolist(),
            "tokens": token_counts.long().tolist(),
        }
        self._write(folder)
        if self.beta is None:
            return EvaluationResult(float(losses.sum() / tokens.sum()))
        return EvaluationResult(
            float(losses.mean()), float((margins > 0).double().mean()), float(margins.mean())
        )

    def add_in_int4(self, losses: torch.Tensor, folder: Path) -> None:
        """Add the loss of each row in int4 to the file of the last evaluation."""
        self.columns[INT4_LOSS] = losses.tolist()
        self._write(folder)

    def _write(self, folder: Path) -> None:
        if self.rank.rank == 0:
            run_folder.write_parquet(folder / LOSSES, self.columns)

    def _scores(self) -> torch.Tensor:
        scores = self.empty_scores()
        with self.traffic.paused(), without_trace(self.engine.model):
            for indices in self.batches:
                self.score_batch(scores, indices)
            self.exchange(scores)
        return scores

    def empty_scores(self) -> torch.Tensor:
        """Return zeros (rows, 3), for each row's loss, labelled tokens and, for a pair, margin."""
        return torch.zeros(len(self.numbers), 3, dtype=torch.float64)

    def score_batch(self, scores: torch.Tensor, indices: Sequence[int]) -> None:
        """Score a batch and write the result into `scores`.

        An empty batch also calls the model, because the other ranks wait for its collectives.
        """
        score_rows = self._score_rows if self.beta is None else self._score_pairs
        scores[indices] = score_rows([self.rows[index] for index in indices])[: len(indices)]

    def exchange(self, scores: torch.Tensor) -> None:
        """Give each rank the scores of all ranks.

        Only one rank has scored a row, so the sum is exact in any order.
        """
        if self.rank.world_size > 1:
            dist.all_reduce(scores)

    def _score_rows(self, rows: Sequence[Row]) -> torch.Tensor:
        batch = padded_collate_sft([*rows] or [NO_LABEL], self.pad_id, CROSS_ENTROPY_IGNORE_IDX)
        losses = self._losses(batch["tokens"], batch["labels"])
        return torch.stack([losses, count_labelled(batch["labels"]), torch.zeros_like(losses)], 1)

    def _score_pairs(self, pairs: Sequence[Row]) -> torch.Tensor:
        """Return the DPO loss of each pair, as in training, but without label smoothing."""
        tokens, labels = padded_collate_dpo(
            [*pairs] or [NO_LABELS], self.pad_id, CROSS_ENTROPY_IGNORE_IDX
        )
        tuned_losses = self._losses(tokens, labels)
        with self.engine.reference():
            reference_losses = self._losses(tokens, labels)
        # Log-probabilities are the negative losses.
        chosen, rejected = (reference_losses - tuned_losses).chunk(2)
        margins = (self.beta or 0.0) * (chosen - rejected)
        token_counts = torch.stack(count_labelled(labels).chunk(2)).sum(0)
        return torch.stack([-logsigmoid(margins), token_counts, margins], 1)

    def _losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        device = self.rank.device
        return self.engine.row_losses(tokens.to(device), labels.to(device))


def batches_of_rank(count: int, ranks: int, rank: int, batch: int) -> list[list[int]]:
    """Return the row numbers in each batch of a rank.

    Every rank gets the same number of batches. The last one may be empty.
    """
    rank_rows = list(range(rank, count, ranks))
    most_rows = ceil(count / ranks)
    batches = ceil(most_rows / batch)
    return [rank_rows[index * batch : (index + 1) * batch] for index in range(batches)]


def count_labelled(labels: torch.Tensor) -> torch.Tensor:
    """Count the tokens to predict in each row of `labels` (rows, S). The first never counts."""
    return (labels[:, 1:] != CROSS_ENTROPY_IGNORE_IDX).sum(1).double()
