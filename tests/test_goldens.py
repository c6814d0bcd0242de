"""The code's answers against those that were frozen before it was rearranged
(tests/goldens/freeze.py).
"""

from itertools import islice

import pytest

from tests.goldens import freeze

FROZEN_FIRST = freeze.read("identities")
IDENTITIES = FROZEN_FIRST | freeze.read("added_identities")
COMPOSITIONS = freeze.read("compositions")
ANALYSIS = freeze.read("analysis")
QUICK = freeze.read("benchmarks")["quick"]
EACH = 32  # of so many cells one is composed where the test is to be fast


def test_experiments_have_the_same_cells():
    found = {name: (entry, cells) for entry, name, cells in freeze.sweeps()}
    assert found.keys() == IDENTITIES.keys()
    for name, (entry, cells) in found.items():
        of_all = freeze.shared(cells)
        assert (entry, " ".join(of_all)) == (
            IDENTITIES[name]["entry"],
            IDENTITIES[name]["all"],
        ), name
        assert [freeze.own(cell, of_all) for cell in cells] == [
            words for words, _ in IDENTITIES[name]["cells"]
        ], name
    for name, golden in FROZEN_FIRST.items():
        assert golden["all"] == IDENTITIES[name]["all"]
        assert all(cell in IDENTITIES[name]["cells"] for cell in golden["cells"]), name


def assert_identities(name: str, first: int, step: int) -> None:
    """Compare the identity of every `step`-th cell of an experiment, from the `first` on."""
    golden = IDENTITIES[name]
    for words, digits in islice(golden["cells"], first, None, step):
        cell = f"{words} {golden['all']}".split()
        assert (words, freeze.identity(golden["entry"], cell)) == (words, digits)


def test_some_cells_have_the_same_identities():
    for index, name in enumerate(IDENTITIES):
        assert_identities(name, index % EACH, EACH)


@pytest.mark.slow
@pytest.mark.parametrize("name", IDENTITIES)
def test_all_cells_have_the_same_identities(name: str):
    assert_identities(name, 0, 1)


@pytest.mark.parametrize("entry", COMPOSITIONS["defaults"])
def test_the_defaults_are_composed_as_before(entry: str):
    assert freeze.composition(entry, []).splitlines() == COMPOSITIONS["defaults"][entry]


@pytest.mark.parametrize("entry", COMPOSITIONS["defaults"])
def test_every_option_is_composed_as_before(entry: str):
    golden = {
        key: digest for key, digest in COMPOSITIONS["sha256"].items() if key.startswith(entry)
    }
    found = {key: freeze.digest(freeze.composition(entry, key.split()[1:])) for key in golden}
    assert found == golden


def test_the_analysis_says_the_same():
    found = freeze.analysis([*ANALYSIS])
    for line, golden in ANALYSIS.items():
        assert found[line] == golden, line


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
@pytest.mark.parametrize("words", QUICK)
def test_a_quick_benchmark_reaches_the_same(words: str):
    assert freeze.benchmark(words) == QUICK[words]
