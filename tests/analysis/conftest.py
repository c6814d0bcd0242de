"""What the commands of `analysis` say."""

from collections.abc import Callable

import pytest

from analysis.__main__ import main

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command prints that does its work."""

    def call(*words: object) -> str:
        assert main([*map(str, words)]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Said:
    """Why a command is refused, in the one line that it prints."""

    def call(*words: object) -> str:
        capsys.readouterr()
        try:
            code = main([*map(str, words)])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        assert (code, printed.out, printed.err.count("\n")) == (1, "", 1), printed
        return printed.err.removeprefix("refused: ").removesuffix("\n")

    return call
