"""What is predicted of runs from the records of others."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from multicard.config import schema
from multicard.config.base import plain
from multicard.estimate import estimates, history, peaks, target
from multicard.estimate.estimates import Effort, Predictor, estimate
from multicard.estimate.history import PastRun
from multicard.estimate.memory.answers import Active, Request
from multicard.estimate.observations import Basis
from multicard.estimate.target import TargetMachine, targets
from multicard.machine import environment, gpu_models, load
from multicard.machine.slurm import Allocation
from multicard.measure import formulas
from multicard.ranks.failures import Failure
from multicard.records import limits
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.run import attempts, outcome, prepare
from multicard.run.peers import Peers
from multicard.tracking.upload import Mirror
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, composed, typed, typed_llm, typed_script
from tests.helpers import records
from tests.helpers.messages import codes, find, says, told
from tests.helpers.nvml_stand_in import Gpu, Nvml, install
from tests.helpers.past_runs import CPU, H200, config, past, predicted, probe, vision

# ---- the history


def test_only_finished_records_that_can_be_read_are_in_the_history(tmp_path: Path):
    sweep = tmp_path / "sweep"
    kept = {"ok": vision(), "probe-probe": probe(), "oom": vision(status="oom")}
    others = {
        "refused": vision(status="refused"),
        ".aside.before": vision(),
        "newer": vision(schema_version=99),
    }
    for name, record in (kept | others).items():
        records.write(sweep / name, record)
    for name, text in {
        "broken": "{",
        "empty": "",
        "types": '{"kind": "vision", "status": 3}',
    }.items():
        records.write(sweep / name, {})
        (sweep / name / "result.json").write_text(text)
    known = history.read_runs([sweep, tmp_path / "absent"])
    assert sorted((run.record.status, run.is_probe) for run in known) == [
        ("ok", False),
        ("ok", True),
        ("oom", False),
    ]
    older = history.read_runs(sorted(Path("tests/fixtures/records_v1").iterdir()))
    assert len(older) == 8 and sum(run.left_out is None for run in older) == 5


def test_a_record_is_decoded_once_for_each_state_of_its_file(tmp_path: Path):
    records.write(tmp_path / "run", vision(0.1))
    (first,) = history.read_runs([tmp_path])
    assert history.read_runs([tmp_path])[0] is first
    path = tmp_path / "run" / "result.json"
    path.with_name("new").write_text(json.dumps(vision(0.2)))
    path.with_name("new").replace(path)
    assert history.read_runs([tmp_path])[0].step_s == pytest.approx(0.2)


def test_a_root_of_sweeps_teaches_all_of_them_and_another_folder_itself(tmp_path: Path):
    root = tmp_path / "multirun"
    for name in ("b", "a", "published", ".hidden"):
        (root / name / "cell").mkdir(parents=True)
    (root / "file").write_text("")
    assert history.history_folders(root / "b" / "cell") == [root / "a", root / "b"]
    assert history.history_folders(tmp_path / "other" / "b" / "cell") == [tmp_path / "other" / "b"]


def test_a_run_out_of_memory_before_it_trained_is_one_of_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No rank had written anything by then."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, Nvml(Gpu("GPU-a")))
    folder, alone = tmp_path / "sweep" / "run", Allocation()
    cfg = composed(*SMALL, "gpus=1", "device=cuda")
    prepared = prepare.prepare(WORKLOAD, cfg, folder, 0.0, alone, Peers(alone), lambda *_: None)
    assert isinstance(prepared, prepare.PreparedRun)
    attempts.end(folder, Failure("oom", "CUDA out of memory"))
    mirror = Mirror(prepared.config.tracker, folder, Mock())
    ended = outcome.complete(prepared, outcome.begin(WORKLOAD, cfg, folder), mirror)
    assert (ended.status, ended.record.hardware) == ("oom", "H200")
    (run,) = history.read_runs([tmp_path / "sweep"])
    assert run.is_of("H200", None)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("[[limit.crowded]]", {"gpus": 32}),
        ("[[limit.profiled]]", {"profile": {"name": "kineto", "window": "start"}}),
        ("diverged", {"status": "diverged"}),
        ("ran out of memory", {"status": "oom"}),
        ("[[limit.oversubscribed]]", {"device": "cuda", "oversubscribed": True}),
        ("no times", {"step_s": formulas.statistics([], 1)}),
        ("no times", {"gpus": 2, "step_s": {"mean": 0.1}}),  # an older definition
    ],
)
def test_runs_that_say_nothing_about_time_are_left_out_and_the_reason_is_said(
    reason: str, changes: dict[str, Any]
):
    record = vision(**changes)
    known = past(record)
    assert known[0].left_out == reason
    prediction = predicted(
        config(record), known, H200 if record["axes"]["device"] == "cuda" else CPU
    )
    assert (prediction.basis, prediction.total_s) == ("unknown", None)
    assert says(prediction.about, "estimate.no-run", of_this_cell={reason: 1})


@pytest.mark.parametrize(
    ("mark", "changes", "times"),
    [
        ("&", {"load": records.load(4.0)}, math.exp(0.3 * 1.645)),
        ("&", {"load": records.load(14.4)}, 10),  # of 16 cores: alone it may take a tenth
        ("!", {"device": "cuda", "gpu": records.gpu(by="other")}, math.exp(0.3 * 1.645)),
    ],
)
def test_what_others_slowed_gives_a_marked_estimate_where_nothing_else_tells(
    mark: str, changes: Any, times: float
):
    """times: how much further its interval reaches than that of a run alone."""
    target, quiet = (H200, {"device": "cuda"}) if "device" in changes else (CPU, {})
    record = probe(0.3, **changes)
    marked = predicted(config(record), past(record), target)
    alone = predicted(config(record), past(probe(0.3, **quiet)), target)
    clean = predicted(config(record), past(vision(0.1, **quiet), record), target)
    assert (marked.basis, marked.marks, clean.basis, clean.marks) == (
        "probed",
        mark,
        "measured",
        "",
    )
    assert marked.total_s and marked.step_s and alone.step_s
    reach, own = (math.log(step_s.high / step_s.value) for step_s in (marked.step_s, alone.step_s))
    assert math.sqrt(reach**2 - own**2) == pytest.approx(math.log(times))


@pytest.mark.parametrize(
    ("now", "is_told"), [(0.25, True), (0.9, False), (0.0, False), (None, False)]
)
def test_times_if_others_stay_as_busy_are_said_where_they_are_as_busy_now(
    now: float | None, is_told: bool
):
    record = vision(0.3, load=records.load(4.0))  # of 16 cores
    predictor = Predictor(CPU, past(record), records.COMMIT, busy_now=lambda _: now)
    (found,) = predictor.predict_all([config(record)], Effort.records)
    assert found.total_s and found.step_s and found.marks == "&"
    if not is_told:
        assert found.as_busy is None
        return
    as_busy = found.as_busy
    assert as_busy and as_busy.total_s
    assert (as_busy.busy, as_busy.step_s.value) == (0.25, pytest.approx(found.step_s.value))
    assert as_busy.total_s.value == pytest.approx(found.total_s.value)
    assert found.total_s.low < as_busy.total_s.low < as_busy.total_s.high < found.total_s.high


def test_the_load_of_this_machine_is_measured_once_and_only_for_runs_on_it(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(environment, "cores", lambda: 16)
    watched: list[float] = []
    monkeypatch.setattr(load, "busy_share_now", lambda: watched.append(0.25) or 0.25)
    record = vision(0.3, load=records.load(4.0))
    quiet = vision(0.1, precision="bf16")
    records.write_all(tmp_path / "sweep", record, quiet)
    asked = [config(record), config(record, epochs=5), config(quiet)]
    found = estimates.estimate(asked, tmp_path / "sweep" / "cell")
    assert [each.prediction.as_busy is not None for each in found] == [True, True, False]
    assert watched == [0.25]
    elsewhere = [TargetMachine("AMD EPYC", None, "cpu")]
    (other,) = estimates.estimate([config(record)], tmp_path / "sweep" / "cell", elsewhere)
    assert other.prediction.total_s and other.prediction.as_busy is None and watched == [0.25]


def test_a_key_that_came_later_has_the_value_of_what_earlier_runs_did():
    """Each key that came later, in the records that may lack it, and in no other."""
    words = "dataset=samsum", "template=summarize", "profile=kineto"
    images = typed("dataset=images", "dataset.root=x")
    script = typed_script("script=train.py")
    cells = [typed("layout=nhwc", "profile=kineto"), images, typed_llm(*words), typed_llm(), script]
    filled: set[str] = set()
    for cell in cells:
        whole, older = history.setting(plain(cell)), plain(cell)
        later = [
            key
            for key, came_after in schema.since().items()
            if any(before in whole for before, _ in came_after)
            and (key in whole or any(each.startswith(f"{key}.") for each in whole))
        ]
        for key in later:
            group, _, name = key.rpartition(".")
            del (older[group] if group else older)[name]
        assert history.setting(older) == whole
        filled |= {*later}
    assert filled == set(schema.since())


# ---- bases


def test_what_is_said_of_runs_of_another_commit_or_machine():
    record = vision()
    for code in ({"commit": "0" * 40}, {"changes": "12345678"}):
        assert says(predicted(config(record), past(record | code)).about, "estimate.other-commit")
    for elsewhere in ({"hardware": "Intel Xeon"}, {"cores": 8}):
        unknown = predicted(config(record), past(record | elsewhere))
        (told_of,) = told(unknown.about)
        assert unknown.basis == "unknown" and [*told_of.facts["of_this_cell"].values()] == [1]
    on_gpu = vision(device="cuda", cores=4)
    # in a job with fewer cores
    assert predicted(config(on_gpu), past(on_gpu), H200).basis == "measured"
    nothing = predicted(config(record), [])
    assert nothing.basis == "unknown" and codes(nothing.about) == ["estimate.no-run"]
    assert find(nothing.about, "estimate.no-run").facts == {
        "hardware": "AMD EPYC",
        "of_this_cell": {},
    }
    stopping = config(
        record | {"config": record["config"] | {"target_accuracy": 0.9, "stop_at_target": True}}
    )
    assert says(predicted(stopping, past(record)).about, "estimate.stops-at-target")


def test_one_call_answers_for_runs_on_several_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(environment, "cores", lambda: 16)
    monkeypatch.setattr(environment, "gpus", list)
    record, other = vision(startup_s=7.0), vision(precision="fp64")
    records.write(tmp_path / "multirun" / "before" / "run", record)
    named = typed(
        "dataset=mnist",
        "dataset.image_size=500",
        "gpus=1",
        "precision=fp32",
        "predict.gpu=h100-94gb",
    )
    named.batch_size = 32
    configs = [config(other), named, config(record)]
    folder = tmp_path / "multirun" / "sweep" / "run"
    unknown, published, measured = estimate(configs, folder, targets(configs))
    assert [each.basis for each in (unknown, published, measured)] == [
        "unknown",
        "published",
        "measured",
    ]
    assert unknown.prediction.step_s is unknown.prediction.total_s is None
    assert published.target.hardware == "h100-94gb" and published.start_s is None
    assert measured.start_s is not None and measured.start_s.value == pytest.approx(7.0)
    here = estimate(configs, folder)
    # whatever predict.gpu says
    assert [each.basis for each in here] == ["unknown", "unknown", "measured"]


# ---- the machine

H100 = TargetMachine(
    "h100-94gb", None, "cuda", "NVIDIA H100", gpu_models.GPUS["h100-94gb"].memory_bytes
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["predict.gpu=h100-94gb"], H100),
        (["predict.gpu=h100-94gb", "predict.memory=80GB"], replace(H100, memory_bytes=80 * 10**9)),
        (["predict.memory=80GiB"], TargetMachine(None, None, "cuda", None, 80 * 2**30)),
        (["device=cuda"], TargetMachine(None, None, "cuda")),
        ([], TargetMachine("AMD EPYC", "16 cores", "cpu", None, 2**36)),
        (
            ["gpus=2", "cpus_per_gpu=3", "exclusive=false"],
            TargetMachine("AMD EPYC", "3 cores a rank", "cpu", None, 2**36),
        ),
    ],
)
def test_a_target_is_a_gpu_by_name_a_memory_or_this_machine(
    words: list[str], told: TargetMachine, monkeypatch
):
    found = {"gpus": [], "cores": 16, "cpu_model": "AMD EPYC", "memory_bytes": 2**36}
    for name, value in found.items():
        monkeypatch.setattr(environment, name, lambda value=value: value)
    assert targets([typed(*words)]) == [told]
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")  # within a job, which has so many cores
    assert targets([typed("gpus=2")])[0].cores == "8 cores a rank"


def test_jobs_of_cpu_ranks_are_of_one_machine_where_a_rank_has_as_many_cores():
    target = replace(CPU, cores="2 cores a rank")
    in_jobs = [vision(gpus=gpus, cores=2 * gpus) | {"job": "7"} for gpus in (1, 2)]
    beside = vision(cores=2)
    beside["config"]["exclusive"] = False
    others = [vision(cores=2), vision(cores=4) | {"job": "8"}]
    known = past(*in_jobs, beside, *others)
    assert [history_run.is_of(target.hardware, target.cores) for history_run in known] == [
        True
    ] * 3 + [False] * 2
    assert predicted(config(vision(gpus=4)), past(*in_jobs), target).basis == "scaled"
    assert predicted(config(vision()), past(beside), target).basis == "measured"


def test_the_gpus_of_this_machine_are_the_target_and_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[int] = []
    gpus = [{"name": "H200", "memory_bytes": 10**11}] * 2
    monkeypatch.setattr(environment, "gpus", lambda: asked.append(1) or gpus)
    cells = [typed("gpus=1"), typed("gpus=2"), typed("device=cpu"), typed("predict.gpu=a10")]
    here, *_ = found = targets(cells)
    assert [each.device_type for each in found] == ["cuda", "cuda", "cpu", "cuda"]
    assert (here.hardware, here.gpu, here.gpus) == ("H200", "H200", 2)
    assert here.memory_bytes == gpu_models.usable_bytes("H200", 10**11)
    assert [each.gpu for each in targets(cells, here=True)] == ["H200", "H200", None, "H200"]
    assert len(asked) == 2 and targets(cells[2:3])[0].device_type == "cpu" and len(asked) == 2


def test_gpus_are_known_by_their_names_and_by_those_that_drivers_give():
    assert target.find_gpu("H100-94gb").products[0] == "NVIDIA H100"
    for gpu in gpu_models.GPUS.values():
        reserved_bytes = gpu.nvml_bytes - gpu.memory_bytes  # CUDA offers less than the driver has
        assert 0 < reserved_bytes < 0.06 * gpu.nvml_bytes, gpu.name
        assert gpu_models.usable_bytes(gpu.products[0], gpu.nvml_bytes) == gpu.memory_bytes
    assert gpu_models.of_product("NVIDIA H100", 64 << 30) is None  # another model of that name
    assert gpu_models.usable_bytes("NVIDIA X1", 10 << 30) == (10 << 30) - gpu_models.RESERVED_BYTES
    names = ("NVIDIA H100 SXM5 64GB", "h100-80gb", "NVIDIA A100", "NVIDIA X1")
    assert [gpu_models.capability(name) for name in names] == [(9, 0), (9, 0), (8, 0), None]
    links = (gpu_models.of_product(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"))
    assert next(links) != next(links)  # one chip with other links takes other times


# ---- memory


@pytest.mark.parametrize(
    ("active", "known", "fits"),
    [
        (100, {}, "yes"),
        (138, {}, "tight"),
        (200, {}, "no"),
        (
            138,
            {"peak_memory_bytes": {"max": 10**11, "per_rank": [10**11], "kind": "cuda_allocated"}},
            "yes",
        ),
        (100, {"status": "oom"}, "no"),
        (100, {"status": "oom", "hardware": "Tesla T4"}, "yes"),
    ],
)
def test_memory_is_that_of_steps_without_values_until_it_was_measured(
    active: int, known: dict[str, Any], fits: str, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[int | None, bool]] = []

    def answer_all(requests: Sequence[Request], compute: bool) -> list[Active]:
        asked.extend((request.memory_bytes, compute) for request in requests)
        return [Active(active * 10**9, {})]

    monkeypatch.setattr(peaks.answers, "answer_all", answer_all)
    runs, wanted = (
        past(vision(device="cuda", **known)) if known else [],
        [config(vision(device="cuda"))],
    )
    (found,) = Predictor(H200, runs, None).predict_all(wanted)
    Predictor(H200, runs, None).predict_all(wanted, Effort.records)
    assert asked == [(H200.memory_bytes, True), (H200.memory_bytes, False)]
    assert (found.fits, found.active_bytes, found.gpu_memory_bytes) == (
        fits,
        active * 10**9,
        H200.memory_bytes,
    )
    assert (
        found.allocated_bytes
        and found.memory_bytes
        and found.memory_bytes.value > found.allocated_bytes.value
    )
    if "peak_memory_bytes" in known:  # which moves what the GPU must have
        assert Basis.of_memory(found) is Basis.measured and found.memory_bytes.low >= 10**11
        assert found.allocated_bytes == PredictedInterval(10**11, 0.98 * 10**11, 1.02 * 10**11)


def test_data_that_is_not_there_is_the_reason_for_no_memory():
    wanted = typed("dataset=images", "dataset.root=/nowhere", "predict.gpu=h100-94gb")
    (prediction,) = Predictor(targets([wanted])[0], [], None).predict_all([wanted])
    assert prediction.memory_bytes is None
    assert "/nowhere" in prediction.memory_basis


# ---- before a run


def test_a_requeued_run_keeps_its_first_prediction(tmp_path: Path):
    attempts.begin(tmp_path, Allocation(), prediction=Prediction("scaled"))
    attempts.end(tmp_path, Failure("preempted", ""))
    attempts.begin(tmp_path, Allocation(), prediction=Prediction("measured"))
    assert attempts.last(tmp_path).prediction == Prediction("scaled")


def test_the_time_of_a_prediction_is_no_part_of_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now_s = [0.0]
    monkeypatch.setattr(prepare, "clock_s", lambda: now_s[0])

    def predict(*_: Any) -> Prediction:
        now_s[0] += 1000.0
        return Prediction("scaled")

    folder, alone = tmp_path / "sweep" / "run", Allocation()
    prepare.prepare(WORKLOAD, composed(*SMALL), folder, 7.0, alone, Peers(alone), predict)
    attempt = attempts.last(folder)
    assert (attempt.started_s, attempt.prediction) == (1007.0, Prediction("scaled"))


def test_an_error_of_a_prediction_stops_no_run(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    def fails(_: Any) -> list[PastRun]:
        raise KeyError("a defect")

    monkeypatch.setattr(history, "read_runs", fails)
    with pytest.raises(KeyError):
        estimates.prediction(typed(), tmp_path / "sweep" / "cell", None)
    monkeypatch.delenv("MULTICARD_STRICT")
    assert estimates.prediction(typed(), tmp_path / "sweep" / "cell", None) is None
    assert says(capsys.readouterr().err, "estimate.error", error="KeyError", reason="'a defect'")


@pytest.mark.usefixtures("processes")
def test_a_run_has_the_prediction_that_was_made_before_it(
    tmp_path: Path, called: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "BUSY_SHARE", math.inf)  # other tests are at work too
    words = [
        "-m",
        *SMALL,
        "gpus=1",
        f"hydra.sweep.dir={tmp_path / 'multirun' / 'sweep'}",
        "name=sweep",
    ]
    for more in (["probe=true"], ["epochs=1,2", "order=typed"]):
        code, printed = called(*words, *more)
        assert code == 0, printed
    written = [
        json.loads(path.read_text()) for path in tmp_path.glob("multirun/sweep/*/result.json")
    ]
    probed, first, second = sorted(
        written, key=lambda record: (record["probe"] is None, record["config"]["epochs"])
    )
    assert probed["prediction"] is None
    assert (first["prediction"]["basis"], first["prediction"]["runs"]) == ("probed", 1)
    assert (second["prediction"]["basis"], second["prediction"]["runs"]) == ("scaled", 1)
    assert second["prediction"]["total_s"]["low"] < second["prediction"]["total_s"]["value"]
    # of CPU ranks it is not computed before a run
    assert second["prediction"]["memory_bytes"] is None
