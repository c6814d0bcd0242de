"""The loss of held-out rows: the same number with each engine, on any number of ranks,
packed or not.

Rows are scored as they are, unpacked, each once: rank r scores the rows r, r + ranks, and so on.
Ranks with fewer batches score a row without labels in the last, so that all call the same
collectives of FSDP. Losses are summed in float64, in the order of the rows,
whichever rank had them.
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
from multicard.llm.no_trace import tried
from multicard.ranks.process import Rank
from multicard.records import held_out, run_folder
from multicard.records.held_out import INT4_LOSS, LOSS
from multicard.records.schema_parts import HeldOut

LOSSES = held_out.FILE  # in the run folder: each row's loss in the last evaluation
Row = dict[str, Any]
NO_LABEL = {"tokens": [1, 1], "labels": [CROSS_ENTROPY_IGNORE_IDX, CROSS_ENTROPY_IGNORE_IDX]}
NO_LABELS = {
    "chosen_input_ids": NO_LABEL["tokens"],
    "chosen_labels": NO_LABEL["labels"],
    "rejected_input_ids": NO_LABEL["tokens"],
    "rejected_labels": NO_LABEL["labels"],
}


class Scorer(Protocol):
    """What an evaluation asks of an engine; `tuning_engine.TuningEngine` says what each does."""

    model: torch.nn.Module

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor: ...

    def reference(self) -> AbstractContextManager[Any]: ...

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]: ...


class Evaluated(NamedTuple):
    """An evaluation: `loss` in nats a labelled token, or the mean DPO loss of pairs.

    ranked_right: share of pairs whose chosen answer has the higher reward; as before the first step
    both rewards are 0, a tie counts as wrong. margin: mean of the chosen answer's reward minus the
    rejected one's. Both are None of rows that are no pairs.
    """

    loss: float
    ranked_right: float | None = None
    margin: float | None = None

    @property
    def is_finite(self) -> bool:
        return isfinite(self.loss) and isfinite(self.margin or 0.0)


class Evaluator:
    """Scores held-out rows with the model as it is.

    Args:
        rows: with labels. Each rank tokenizes its own once.
        pad_id: token of padding.
        traffic: counts the training's collectives, and none of these.
        beta: DPO's; None where rows are no pairs.
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
        self.shares = shares(len(rows), rank.world_size, rank.rank, batch_size)
        self.rows: dict[int, Row] = {
            place: rows[place] for place in chain.from_iterable(self.shares)
        }
        self.columns: dict[str, list[float]] = {}  # of the file of rows
        self.content = HeldOut(rows=len(rows), also_trained=sum(rows.column("is_trained")))

    def evaluate(self, folder: Path) -> Evaluated:
        """Score all rows, and have rank 0 write each row's loss to the folder.
        All ranks call it together.
        """
        losses, tokens, margins = self._scores().T
        self.content.tokens = int(tokens.sum())
        counted = tokens if self.beta is None else torch.ones_like(tokens)
        self.columns = {
            "row": self.numbers,
            LOSS: losses.tolist(),
            "tokens": counted.long().tolist(),
        }
        self._write(folder)
        if self.beta is None:
            return Evaluated(float(losses.sum() / tokens.sum()))
        return Evaluated(
            float(losses.mean()), float((margins > 0).double().mean()), float(margins.mean())
        )

    def add_in_int4(self, losses: torch.Tensor, folder: Path) -> None:
        """Write each row's loss in int4 beside its own of the last evaluation."""
        self.columns[INT4_LOSS] = losses.tolist()
        self._write(folder)

    def _write(self, folder: Path) -> None:
        if self.rank.rank == 0:
            run_folder.write_parquet(folder / LOSSES, self.columns)

    def _scores(self) -> torch.Tensor:
        scores = self.no_scores()
        with self.traffic.paused(), tried(self.engine.model):
            for places in self.shares:
                self.score(scores, places)
            self.exchange(scores)
        return scores

    def no_scores(self) -> torch.Tensor:
        """By row (rows, 3), all 0: loss, labelled tokens, and of a pair the margin."""
        return torch.zeros(len(self.numbers), 3, dtype=torch.float64)

    def score(self, scores: torch.Tensor, places: Sequence[int]) -> None:
        """Write the scores of a batch into those of all rows;
        a batch without a row calls the model all the same.
        """
        score = self._rows if self.beta is None else self._pairs
        scores[places] = score([self.rows[place] for place in places])[: len(places)]

    def exchange(self, scores: torch.Tensor) -> None:
        """Give each rank the scores of all. Each row is one rank's: whatever the order,
        its sum is exact.
        """
        if self.rank.world_size > 1:
            dist.all_reduce(scores)

    def _rows(self, rows: Sequence[Row]) -> torch.Tensor:
        batch = padded_collate_sft([*rows] or [NO_LABEL], self.pad_id, CROSS_ENTROPY_IGNORE_IDX)
        losses = self._losses(batch["tokens"], batch["labels"])
        return torch.stack([losses, labelled(batch["labels"]), torch.zeros_like(losses)], 1)

    def _pairs(self, pairs: Sequence[Row]) -> torch.Tensor:
        """DPO's loss of each pair, as in training, without label smoothing."""
        tokens, labels = padded_collate_dpo(
            [*pairs] or [NO_LABELS], self.pad_id, CROSS_ENTROPY_IGNORE_IDX
        )
        own = self._losses(tokens, labels)
        with self.engine.reference():
            reference = self._losses(tokens, labels)
        chosen, rejected = (reference - own).chunk(2)  # log-probabilities are losses below 0
        margins = (self.beta or 0.0) * (chosen - rejected)
        counted = torch.stack(labelled(labels).chunk(2)).sum(0)
        return torch.stack([-logsigmoid(margins), counted, margins], 1)

    def _losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        device = self.rank.device
        return self.engine.row_losses(tokens.to(device), labels.to(device))


def shares(count: int, ranks: int, rank: int, batch: int) -> list[list[int]]:
    """The rows of each of a rank's batches: as many batches on every rank,
    the last of some without a row.
    """
    own = list(range(rank, count, ranks))
    most = ceil(count / ranks)
    batches = ceil(most / batch)
    return [own[place * batch : (place + 1) * batch] for place in range(batches)]


def labelled(labels: torch.Tensor) -> torch.Tensor:
    """How many tokens of each row (rows, S) are to be predicted: the first never is."""
    return (labels[:, 1:] != CROSS_ENTROPY_IGNORE_IDX).sum(1).double()
