"""Which step trained on which batch, where the order of events is given."""

from array import array

from multicard.script.attribution import Pass, StepEnd, attribute


def whole_pass(source: object, first_place: int, first_backward: int, seen_end_at: int) -> Pass:
    """A pass of three batches that another thread had drawn before the first was trained on."""
    return Pass(
        source,
        sizes=array("q", [8] * 3),
        places=array("q", range(first_place, first_place + 3)),
        backwards=array("q", [first_backward] * 3),
        trains=bytearray([1] * 3),
        in_thread=True,
        ended=(seen_end_at, first_place + 3),
    )


def test_a_thread_may_see_the_end_of_its_pass_at_any_time():
    """It draws three batches ahead, and on a busy machine looks for a fourth when all three were trained on."""
    for seen_end_at in range(4):
        source = object()
        passes = [whole_pass(source, 3 * epoch, 3 * epoch, 3 * epoch + seen_end_at) for epoch in range(2)]
        ends = [StepEnd(step, 3 if step <= 3 else 6) for step in range(1, 7)]
        found = attribute(passes, ends)
        assert found.samples.tolist() == [8] * 6 and found.batches.tolist() == [1] * 6
        assert not found.unknown.any()
