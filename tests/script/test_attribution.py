"""Which step trained on which batch, where the order of events is given."""

from array import array

import pytest

from multicard.script.attribution import attribute
from multicard.script.passes import Pass, PassEnd, Reach, StepEnd


def whole_pass(source: object, first_place: int, first_backward: int, seen_end_at: int) -> Pass:
    """A pass of three batches that another thread had drawn before the first was trained on."""
    return Pass(
        source,
        sizes=array("q", [8] * 3),
        places=array("q", range(first_place, first_place + 3)),
        backwards=array("q", [first_backward] * 3),
        trains=bytearray([1] * 3),
        in_thread=True,
        ended=PassEnd(seen_end_at, first_place + 3),
    )


def test_a_thread_may_see_the_end_of_its_pass_at_any_time():
    """It draws three batches ahead, and on a busy machine looks
    for a fourth when all three were trained on.
    """
    for seen_end_at in range(4):
        source = object()
        passes = [
            whole_pass(source, 3 * epoch, 3 * epoch, 3 * epoch + seen_end_at) for epoch in range(2)
        ]
        ends = [StepEnd(step, 3 if step <= 3 else 6) for step in range(1, 7)]
        found = attribute(passes, ends)
        assert found.samples.tolist() == [8] * 6 and found.batches.tolist() == [1] * 6
        assert not found.unknown.any()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_batch_of_a_thread_without_a_call_was_skipped_unless_the_run_was_stopped(
    is_stopped: bool,
):
    source = object()
    passes = [whole_pass(source, 3 * epoch, 3 * epoch, 3 * epoch) for epoch in range(2)]
    ends = [StepEnd(step, 3 if step <= 3 else 6) for step in range(1, 6)]
    found = attribute(passes, ends, 5, is_stopped)
    assert found.samples.tolist() == [8 if is_stopped else 0] * 5
    assert found.unknown.tolist() == [not is_stopped] * 5


def passes_of(handed_out: list[list[int]], calls: list[int]) -> tuple[list[Pass], list[StepEnd]]:
    """Passes over one loader, whose batches have 8 samples and the last 2,
    and the end of each step.

    Args:
        handed_out: of each pass, the calls of backward before each batch. calls: of backward,
            at the end of each pass.
    """
    source, passes, place = object(), list[Pass](), 0
    for backwards, end in zip(handed_out, calls, strict=True):
        sizes = [8] * (len(backwards) - 1) + [2]
        places = range(place, place + len(backwards))
        place += len(backwards)
        fields = {
            "sizes": array("q", sizes),
            "places": array("q", places),
            "backwards": array("q", backwards),
        }
        passes.append(
            Pass(
                source, **fields, trains=bytearray([1] * len(backwards)), ended=PassEnd(end, place)
            )
        )
    drawn = sorted(
        (before, at) for one in passes for before, at in zip(one.backwards, one.places, strict=True)
    )
    ends = [
        StepEnd(step, 1 + max(at for before, at in drawn if before < step))
        for step in range(1, calls[-1] + 1)
    ]
    return passes, ends


def test_a_last_batch_that_a_script_skips_is_of_no_step():
    passes, ends = passes_of([[0, 1, 2], [2, 3, 4]], [2, 4])
    found = attribute(passes, ends)
    assert found.samples.tolist() == [8] * 4 and not found.unknown.any()


def test_a_last_batch_that_is_trained_on_counts():
    passes, ends = passes_of([[0, 1, 2], [3, 4, 5]], [3, 6])
    found = attribute(passes, ends)
    assert found.samples.tolist() == [8, 8, 2] * 2 and not found.unknown.any()


def test_beside_a_skipped_batch_samples_are_not_known():
    passes, ends = passes_of([[0, 1, 1, 2], [3, 4, 5, 6]], [3, 7])
    found = attribute(passes, ends)
    assert found.unknown.tolist() == [False, True, False, False, False, False, False]
    assert found.samples.tolist() == [8, 0, 2, 8, 8, 8, 2]


def test_losses_that_a_script_usually_adds_are_of_one_step():
    passes, ends = passes_of([[0, 0, 1, 1, 2], [3, 3, 4, 4, 5]], [3, 6])
    for one in passes:
        one.reach = Reach.every
    found = attribute(passes, ends)
    assert found.samples.tolist() == [16, 16, 2] * 2 and not found.unknown.any()


@pytest.mark.parametrize("reach", [Reach.some, None])
def test_of_several_batches_before_a_call_some_may_be_skipped(reach: Reach | None):
    passes, ends = passes_of([[0, 0, 1, 1, 2], [3, 3, 4, 4, 5]], [3, 6])
    for one in passes:
        one.reach = reach
    found = attribute(passes, ends)
    assert found.unknown.tolist() == [True, True, False] * 2
    assert found.samples.tolist() == [0, 0, 2] * 2


def test_a_pass_of_gradients_that_no_step_takes_makes_its_next_step_unknown():
    passes, ends = passes_of([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], [3, 6, 9, 12])
    # of the third pass none makes a step
    ends = [end for end in ends if not 7 <= end.backwards <= 9]
    found = attribute(passes, ends)
    assert found.unknown.tolist() == [False] * 6 + [True, False, False]


def test_steps_from_which_a_loader_is_missing_are_unknown():
    """`zip(itertools.cycle(short), long)`: two batches of
    the one are trained on again and again.
    """
    long, short = object(), object()
    fields = {
        "trains": bytearray([1] * 6),
        "places": array("q", [1, 3, 4, 5, 6, 7]),
        "sizes": array("q", [24] * 6),
    }
    every = Pass(long, **fields, backwards=array("q", range(6)), ended=PassEnd(6, 8))
    fields = {
        "trains": bytearray([1] * 2),
        "places": array("q", [0, 2]),
        "sizes": array("q", [8] * 2),
    }
    kept = Pass(short, **fields, backwards=array("q", range(2)), ended=PassEnd(2, 4))
    ends = [
        StepEnd(step, place) for step, place in zip(range(1, 7), (2, 4, 5, 6, 7, 8), strict=True)
    ]
    found = attribute([kept, every], ends)
    assert found.samples.tolist() == [32, 32, 0, 0, 0, 0]
    assert found.unknown.tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("is_combined", [False, True])
def test_the_last_batch_of_a_pass_that_is_left_for_other_data_counts_only_beside_others(
    is_combined: bool,
):
    """Batches 0 to 2 are of one loader, and a step after them has the first of another;
    or each step has both.
    """
    places = ([0, 2, 4], [1, 3, 5]) if is_combined else ([0, 1, 2], [3, 4, 5])
    backwards = ([0, 1, 2], [0, 1, 2]) if is_combined else ([0, 1, 2], [2, 3, 4])
    passes = [
        Pass(object(), array("q", [8] * 3), array("q", of), array("q", calls), bytearray([1] * 3))
        for of, calls in zip(places, backwards, strict=True)
    ]
    handed_out = (2, 4, 6) if is_combined else (1, 2, 4, 5, 6)
    ends = [StepEnd(step, place) for step, place in enumerate(handed_out, 1)]
    found = attribute(passes, ends, total_calls=len(ends))
    assert found.samples.tolist() == ([16] * 3 if is_combined else [8] * 5)
    assert not found.unknown.any()


def test_a_batch_that_no_call_follows_before_the_run_ends_is_of_no_step():
    """The last step has gradients that the script computed itself."""
    left = Pass(
        object(),
        array("q", [8] * 3),
        array("q", range(3)),
        array("q", range(3)),
        bytearray([1] * 3),
    )
    found = attribute([left], [StepEnd(1, 1), StepEnd(2, 2), StepEnd(2, 3)])
    assert found.samples.tolist() == [8, 8, 0]
