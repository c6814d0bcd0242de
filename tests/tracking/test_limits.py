"""What W&B says of a script's run whose ranks trained apart."""

from pathlib import Path

import msgspec
import pytest

from multicard.records import limits
from multicard.records.limits import APART, OTHER_STEPS, OTHER_WEIGHTS
from tests.helpers import records
from tests.tracking.test_runs import mirrored


@pytest.mark.parametrize("kind", [APART, OTHER_WEIGHTS, OTHER_STEPS])
def test_ranks_that_trained_apart_are_a_tag_and_in_the_summary(
    kind: limits.LimitKind, tmp_path: Path
):
    limit = msgspec.to_builtins(kind.limit())
    content = mirrored(tmp_path / "apart", records.script("cpu", gpus=2, limits=[limit]))
    assert kind.code in content["run"].tags
    assert kind.code in content["summary"]["limits"]
    content = mirrored(tmp_path / "together", records.script("cpu", gpus=2))
    assert kind.code not in content["run"].tags
    assert "limits" not in content["summary"] or kind.code not in content["summary"]["limits"]
