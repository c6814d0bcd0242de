"""Roles of keys: every key has them, they make sense together,
and what asks for them gets what it means.
"""

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import get_args

import pytest

from analysis.runs.load import Run
from analysis.stats import between_runs
from multicard import workloads
from multicard.config import schema
from multicard.config.hydra_config import ExperimentConfig
from multicard.config.keys import key
from multicard.config.roles import Role, problem
from multicard.config.vision import LoaderConfig, VisionConfig
from multicard.decide.plan.jobs_file import PLANNED


def schemas() -> set[type]:
    """The schemas of all entries and of all options, as Hydra's store has them."""
    found: list[type] = [ExperimentConfig, *(workload.schema for workload in workloads.WORKLOADS)]
    for workload in workloads.WORKLOADS:
        for options in workload.options.values():
            found += options.values()
    for one in found:  # grows: groups within
        for field in fields(one):
            found += [
                each for each in (field.type, *get_args(field.type)) if _is_new_schema(each, found)
            ]
    return {*found}


def _is_new_schema(each: object, found: list[type]) -> bool:
    return isinstance(each, type) and is_dataclass(each) and each not in found


def test_every_key_of_every_schema_has_roles_that_make_sense():
    for one in schemas():
        for field in fields(one):
            roles = field.metadata.get("roles")
            assert roles is not None, f"{one.__name__}.{field.name}"
            assert problem(roles) is None, f"{one.__name__}.{field.name}"


def test_every_key_that_can_be_typed_is_known():
    for workload in workloads.WORKLOADS:
        unknown = [
            name
            for name in workloads.known_keys(workload)
            # of options alone
            if name not in (*schema.keys(Role.identity), *schema.keys(Role.beside), "preset")
        ]
        assert unknown == []
    assert not {*schema.keys(Role.identity)} & {*schema.keys(Role.beside)}


def test_the_keys_of_a_group_are_as_much_a_part_of_the_identity_as_the_group():
    for name in (*schema.keys(Role.identity), *schema.keys(Role.beside)):
        group = schema.of(name.partition(".")[0])
        assert (Role.beside in schema.of(name)) == (Role.beside in group), name


@pytest.mark.parametrize(
    "roles",
    [
        Role(0),
        Role.identity | Role.beside,
        Role.learning,
        Role.beside | Role.learning,
        Role.beside | Role.speed,
        Role.identity | Role.repetition | Role.learning,
        Role.identity | Role.place,
        Role.identity | Role.place | Role.input | Role.content | Role.work,
        Role.identity | Role.part,
        Role.identity | Role.drawn | Role.length,
        Role.identity | Role.rows,
        Role.option | Role.identity,
    ],
)
def test_combinations_without_sense_are_refused_where_the_key_is_declared(roles: Role):
    with pytest.raises(TypeError, match="a key that "):
        key(1, "a key", roles)


def test_roles_are_required():
    with pytest.raises(TypeError):
        key(1, "a key")  # pyright: ignore[reportCallIssue]


# ---- what the roles of some keys mean


def test_a_seed_repeats_and_neither_it_nor_a_repetition_changes_accuracy():
    # the outermost axes, in this order
    assert schema.keys(Role.repetition) == ("repetition", "seed")
    assert not {"seed", "repetition"} & {*schema.keys(Role.learning), *schema.keys(Role.speed)}


def test_places_are_where_data_lie_and_not_what_they_are():
    places = {"dataset.root", "dataset.cache_dir", "dataset.download", "dataset.data_files"}
    places |= {"dataset.test_files"}
    places |= {"tokenizer.path", "tokenizer.merges_file"}
    assert {*schema.keys(Role.place)} == places
    assert {*schema.keys(Role.input)} == places | {"dataset.source", "dataset.columns"}
    assert not {"dataset.source", "dataset.revision", "model.path"} & places


def test_what_may_change_accuracy_is_part_of_the_identity():
    learning = {*schema.keys(Role.learning)}
    assert learning <= {*schema.keys(Role.identity)}
    assert learning >= {
        "engine",
        "precision",
        "batch_size",
        "gpus",
        "lr",
        "method",
        "dataset.rows",
        "method.beta",
    }
    assert not learning & {"loader", "layout", "sharding", "compile", "pin_memory", "num_workers"}


def test_lengths_change_how_many_steps_there_are_and_not_a_step():
    lengths = {
        "epochs",
        "dataset.train_limit",
        "dataset.test_limit",
        "dataset.split",
        "dataset.rows",
    }
    assert {*schema.keys(Role.length)} == lengths | {"max_steps", "steps"}
    assert {*schema.keys(Role.length)} <= schema.without(Role.speed)
    assert {*schema.keys(Role.part)} == {*schema.keys(Role.length)} - {"epochs"}
    assert {*schema.keys(Role.drawn)} == {"dataset.rows", "max_steps"}


def test_ways_to_compute_are_not_work():
    work = {*schema.keys(Role.work)}
    assert work >= {
        "dataset",
        "model",
        "epochs",
        "dataset.augment",
        "model.width",
        "template",
        "script",
        "steps",
    }
    ways = {
        "method",
        "precision",
        "model.pointwise",
        "model.blocks",
        "dataset.cache",
        "dataset.device_budget_bytes",
    }
    assert not work & {*ways, *schema.keys(Role.place), "args", "gpus"}


def test_a_plan_says_why_of_each_key_that_it_sets():
    assert PLANNED.keys() == {*schema.keys(Role.planned)}


def test_losses_of_another_beta_are_not_compared():
    assert {*schema.keys(Role.loss)} == {"method.beta", "dataset.loss"}
    low, high = (Run(Path(), {"method.beta": beta}) for beta in (0.1, 0.5))
    assert between_runs.is_one_loss(low, low) and not between_runs.is_one_loss(low, high)


# ---- names


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("image_size", "dataset.image_size"),
        ("rows", "dataset.rows"),
        ("weights", "model.weights"),
        ("config.steps", "steps"),
        ("dataset.image_size", "dataset.image_size"),
        ("batch_size", "batch_size"),
        ("args.lr", "args.lr"),
    ],
)
def test_a_column_has_the_roles_of_its_key(column: str, name: str):
    assert schema.key_of(column) == name
    assert schema.of(column) == schema.of(name)


def test_axes_are_keys_that_change_what_is_measured():
    for axes in schema.AXES.values():
        assert [name for name in axes if Role.identity not in schema.of(name)] == []
        assert len({name.rpartition(".")[2] for name in axes}) == len(axes)
    assert "dataset.root" not in map(schema.key_of, schema.shown())
    assert schema.column_of("dataset.image_size") == "image_size"


def test_a_key_that_no_schema_has_counts_as_one_of_its_group():
    assert schema.of("dataset.gone") == schema.of("dataset")
    assert schema.of("gone") == Role.identity | Role.speed
    assert Role.beside in schema.of("objective")


def test_a_key_of_an_option_that_is_defined_elsewhere_is_known_as_soon_as_it_is():
    assert "loader.of_my_own" not in schema.keys(Role.speed)

    @dataclass
    class OwnConfig(LoaderConfig):
        of_my_own: int = key(1, "a number", Role.identity | Role.speed)

    assert "loader.of_my_own" in schema.keys(Role.speed)
    assert OwnConfig.__name__ and "of_my_own" not in schema.own(VisionConfig, Role.speed)


def test_what_another_key_was_before_it_came():
    assert schema.since()["engine"] == [("recipe", "torchtune")]
    # of images first, and of text, which has another key that was there before
    assert schema.since()["dataset.split"] == [
        ("dataset.skip_broken", None),
        ("dataset.rows", None),
    ]
    known = {*schema.keys(Role.identity)}
    for name, came_after in schema.since().items():
        assert {name, *(before for before, _ in came_after)} <= known


def test_what_to_try_next_is_a_key_of_the_entry():
    assert schema.tries("vision", "data") == ["loader", "num_workers"]
    assert schema.tries("vision", "h2d") == ["pin_memory", "loader"]
    assert schema.tries("vision", "forward") == ["precision", "layout", "batch_size"]
    assert schema.tries("llm", "forward") == ["precision", "batch_size"]  # tuning has no layout
