"""What the ranks of a script saw, as the record has it."""

from multicard.messages import UNCODED
from multicard.records.rank_files import ScriptReport
from multicard.script.summary import _seen


def report(rank: int, *seen: tuple[str, str]) -> ScriptReport:
    sentences, codes = [sentence for sentence, _ in seen], [code for _, code in seen]
    return ScriptReport(rank=rank, seen=sentences, seen_codes=codes)


def test_what_ranks_saw_with_other_figures_is_there_once_with_its_rank():
    ranks = [
        report(rank, ("alike", "a"), (f"{rank} s", "b"), (UNCODED + str(rank), UNCODED))
        for rank in range(3)
    ]
    assert list(_seen(ranks).values()) == ["a", "b", UNCODED, UNCODED, UNCODED]
    (named,) = [sentence for sentence, code in _seen(ranks).items() if code == "b"]
    assert "rank 0" in named and "0 s" in named
    assert "alike" in _seen(ranks)


def test_what_one_rank_alone_saw_is_there_as_it_is():
    assert _seen([report(0, ("alike", "a")), report(1, ("alike", "a"), ("5 s", "b"))]) == {
        "alike": "a",
        "5 s": "b",
    }
