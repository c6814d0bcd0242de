"""Costs: the price of GPU hours, its sources, and the figures and rankings made of it."""

from pathlib import Path
from typing import Any

import pytest

import multicard
from analysis.__main__ import main
from multicard.config import prices
from multicard.config.placement import place
from multicard.records.figures import FIGURES
from multicard.records.table import lines
from tests.conftest import typed
from tests.helpers import records

PRICED = {"price": {"gpu_hour": 2.5}}
COSTS = [name for name in FIGURES if name.startswith("cost")]


def tell(tmp_path: Path, text: str) -> None:
    (tmp_path / "multicard").mkdir(exist_ok=True)
    (tmp_path / prices.TABLE).write_text(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_cost_is_price_times_gpus_times_hours():
    epochs = [{"epoch": n, "samples_trained": 4000} for n in range(2)]
    run = records.as_record(records.vision(gpus=4, total_s=1800.0, **PRICED) | {"epochs": epochs})
    assert [FIGURES[name].value(run) for name in COSTS] == [5.0, 2.5, 0.625, None]
    tokens = {"all": 3_000_000, "non_padding": 2_000_000, "loss_bearing": 1}
    tuned = records.as_record(records.llm(gpus=2, nodes=2, total_s=3600.0, tokens=tokens, **PRICED))
    assert FIGURES["cost"].value(tuned) == 10.0 and FIGURES["cost_per_million_tokens"].value(tuned) == 5.0


@pytest.mark.parametrize("changes", [{"device": "cpu"}, {"oversubscribed": True}, {"total_s": None}])
def test_what_no_gpu_hours_pay_for_has_no_cost(changes: dict[str, Any]):
    run = records.as_record(records.vision(**changes, **PRICED))
    assert [FIGURES[name].value(run) for name in COSTS] == [None] * 4


def test_the_users_table_prices_gpus_by_the_words_of_their_names(home: Path):
    tell(home, "H100: 2.49\nnvidia h100 pcie: 1.9\nA100-SXM4: 1.2\n")
    gpus = (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A10",
        "H100, NVIDIA A10",
        None,
    )
    assert [prices.gpu_hour({}, gpu) for gpu in gpus] == [2.49, 1.9, 1.2, None, None, None]
    assert prices.gpu_hour({"price": {"gpu_hour": 3.0}}, "H100") == 3.0


@pytest.mark.parametrize(
    "text", ["H100: -1", "H100: free", "H100: .nan", "H100: true", "- 2.49", "'': 1", "a: b: c", "\0"]
)
def test_a_broken_table_is_refused_before_anything_runs(home: Path, text: str):
    tell(home, text)
    with pytest.raises(ValueError, match=r"^.*prices\.yaml: [^\n]*$"):
        typed()


@pytest.mark.parametrize("price", ["0", "-2.49", "nan", "inf"])
def test_a_price_is_above_zero(price: str):
    with pytest.raises(ValueError, match=r"price\.gpu_hour=.*: must be above 0, and finite, or null"):
        typed(f"price.gpu_hour={price}")


def test_cpu_ranks_have_no_price():
    with pytest.raises(ValueError, match=r"price\.gpu_hour=2\.49: .*leave it out"):
        place(typed("price.gpu_hour=2.49"), 0)
    assert place(typed("price.gpu_hour=2.49"), 1).device == "cuda"
    assert typed("price.gpu_hour=2.49").identity() == typed().identity()


def test_best_ranks_by_cost_at_any_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for gpus, total_s in ((1, 100.0), (2, 60.0), (4, 20.0)):
        records.write(tmp_path / str(gpus), records.vision(gpus=gpus, total_s=total_s))
    assert main(["best", str(tmp_path), "--goal", "cost"]) == 1
    assert "none has cost; give the price of a GPU for an hour, as --price 2.49" in capsys.readouterr().err
    assert main(["best", str(tmp_path), "--goal", "cost", "--price", "36"]) == 0
    assert capsys.readouterr().out.startswith("Least cost: gpus=4: 0.8")
    runs = multicard.load(tmp_path, price=36)
    assert runs.best(goal="cost").to_pandas()["cost"].round(9).tolist() == [0.8, 1.0, 1.2]
    assert "Least cost: gpus=4: 0.8" in repr(runs.best())
    with pytest.raises(ValueError, match="price: -1 is no price"):
        multicard.load(tmp_path, price=-1)
    with pytest.raises(SystemExit):
        main(["list", str(tmp_path), "--price", "dear"])
    assert "dear is no price of a GPU for an hour" in capsys.readouterr().err


def test_what_is_slower_and_cheaper_is_on_the_front_too(tmp_path: Path):
    for hour, total_s, precision in ((4.0, 50.0, "bf16"), (1.0, 100.0, "fp16"), (2.0, 110.0, "fp32")):
        record = records.vision(precision=precision, total_s=total_s, price={"gpu_hour": hour})
        records.write(tmp_path / precision, record)
    assert multicard.load(tmp_path).best().to_pandas()["front"].tolist() == [True, True, False]
    assert multicard.load(tmp_path, price=1).best().to_pandas()["front"].tolist() == [True, False, False]


def test_the_table_at_the_end_has_the_cost():
    head, row, *_ = lines([records.as_run(records.vision(total_s=3600.0, price={"gpu_hour": 2.49}))])
    assert "cost" in head.split() and "2.49" in row.split()
