"""CSV without a header: its first row is not lost in silence."""

import shlex
import subprocess
from pathlib import Path

import pytest

from multicard.llm.data import row_sources
from tests.helpers.messages import refused, told
from tests.llm.test_row_files import typed_llm

pytestmark = pytest.mark.core

ROWS = 4


def bare(folder: Path, delimiter: str = ",") -> Path:
    lines = [f"what is number {row}?{delimiter}it is {row}" for row in range(ROWS)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return folder / "a.csv"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("words", ["dataset=chat", "dataset=alpaca_cleaned"])
def test_a_first_line_that_reads_as_a_row_is_refused(words: str, delimiter: str, tmp_path: Path):
    path = bare(tmp_path, delimiter)
    config = typed_llm(words, f"dataset.data_files={path}", "dataset.split=0")
    with refused("llm.no-header", key="dataset.data_files", file=str(path)) as caught:
        row_sources.load_rows(config)
    command = next(each for each in caught.value.message.remedies if each.startswith("sed"))
    subprocess.run(shlex.split(command), check=True)
    assert len(row_sources.load_rows(config).rows or []) == ROWS


def test_a_first_line_that_the_command_takes_for_names_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = bare(tmp_path)
    named = 'dataset.columns={instruction: "what is number 0?", output: "it is 0"}'
    config = typed_llm("dataset=chat", f"dataset.data_files={path}", "dataset.split=0", named)
    assert len(row_sources.load_rows(config).rows or []) == ROWS - 1
    (line,) = told(capsys.readouterr().out)
    assert line.code == "llm.header-taken" and line.has({"cell": "what is number 0?"})


@pytest.mark.parametrize(
    ("header", "is_told"), [("hello,bonjour", True), ("faq_question,reply", False)]
)
def test_single_words_that_the_command_takes_for_names_are_told_unless_they_tell_what_they_hold(
    header: str, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.csv").write_text(f"{header}\ncat,chat\ndog,chien\n")
    first, second = header.split(",")
    named = f"dataset.columns={{instruction: {first}, output: {second}}}"
    path = f"dataset.data_files={tmp_path / 'a.csv'}"
    found = row_sources.load_rows(typed_llm("dataset=chat", path, "dataset.split=0", named))
    assert len(found.rows or []) == 2
    lines = told(capsys.readouterr().out)
    assert [(line.code, line.has({"cell": first})) for line in lines] == (
        [("llm.header-taken", True)] if is_told else []
    )


def test_names_of_several_words_beside_a_known_one_are_names(tmp_path: Path):
    (tmp_path / "a.csv").write_text("instruction,output,how sure are you\na,b,1\nc,d,2\n")
    config = typed_llm("dataset=chat", f"dataset.data_files={tmp_path / 'a.csv'}")
    assert len(row_sources.load_rows(config).rows or []) == 2
