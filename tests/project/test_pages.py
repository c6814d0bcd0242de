"""The pages: every link leads somewhere, every command runs, shrunk,
and pictures are as they are made.
"""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from analysis.__main__ import main
from analysis.commands.gate import GateVerdict
from docs import pictures, status
from multicard import demo
from multicard.cli import keys_page
from tests.analysis.test_compare import sweep
from tests.conftest import ROOT, SHARED, Called, has_dali
from tests.helpers import records
from tests.helpers.messages import codes, find
from tests.helpers.report_view import CHROMIUM
from tests.llm import test_folders
from tests.vision.test_sample_sources import FORMS

KINDS_OF_PAGES = ("reference", "studies", "develop")
FILES_OF_PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
for kind in KINDS_OF_PAGES:
    FILES_OF_PAGES += sorted(ROOT.glob(f"docs/{kind}/*.md"))
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in FILES_OF_PAGES}
MAKEFILE = (ROOT / "Makefile").read_text()
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


MAX_WORDS_OF_USERS_PAGES = 12_000


def commands(start: str) -> list[str]:
    """The commands in fenced blocks of all pages that begin with `start`, each once; what a command
    printed is indented.
    """
    joined = "\n".join(block for text in PAGES.values() for block in FENCED.findall(text)).replace(
        "\\\n", " "
    )
    lines = (
        " ".join(line.partition("  #")[0].split())
        for line in joined.splitlines()
        if not line[:1].isspace()
    )
    return list(dict.fromkeys(line for line in lines if line.startswith(start)))


DEMO = [f"python train_vision.py {demo.SWEEP}"]
# `predict=true` of a GPU is for tests/estimate, and prices are of
# GPUs: the words that shrink a command leave none
VISION = [
    line
    for line in dict.fromkeys([*commands("python train_vision.py"), *DEMO])
    if not re.search(r" (predict\.gpu|price\.gpu_hour)=", line)
]
TUNING = commands("python tune_llm.py")
ANALYSIS = commands("python -m analysis")

# What a documented command may name that this machine does not have, and what stands in for it
SHRUNK = {
    "device": "cpu",
    "dataset.train_limit": "64",
    "dataset.test_limit": "8",
    "model.width": "0.35",
    "dataset.image_size": "32",
    "epochs": "1",
    "batch_size": "16",
    "tracker.mode": "disabled",
    "repeat_max": "2",
}
DATA = {"mnist": SHARED / "mnist", "images": SHARED / "clothing"}
# images that are made in this form
OWN = {"data/flat": "flat", "data/labels.csv": "csv", "data/hub": "hub"}
TUNING_SHRUNK = {
    "device": "cpu",
    "max_steps": "2",
    "dataset.rows": "12",
    "tracker.mode": "disabled",
}
TINY = {"model=llama3_8b": "model=llama3_tiny", "max_seq_len=512": "max_seq_len=128"}  # of few rows
FILES = {
    **dict.fromkeys(
        ("rows.jsonl", "train.jsonl", "validation.jsonl"),
        SHARED / "text" / "alpaca_cleaned_500.jsonl",
    ),
    "chats.jsonl": ROOT / "tests/fixtures/chats.jsonl",
    "faq.csv": ROOT / "tests/fixtures/faq.csv",
    "helpdesk.csv": ROOT / "tests/fixtures/helpdesk.csv",
    "pairs.jsonl": SHARED / "text" / "hh_helpful_500.jsonl",
    "Meta-Llama-3-8B/original/tokenizer.model": SHARED / "tokenizer" / "tokenizer.model",
}
OF_TRANSFORMERS = "Qwen3-0.6B"  # a folder of the hub, in whose place is a small one
# another, of which tests/llm/test_kept_tuning.py has a small one
OF_TORCHTUNE = "Llama-3.2-1B"


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", PAGES[page])):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), target


def test_the_readme_is_short_and_names_every_page():
    assert len(PAGES["README.md"].split()) <= 1350
    linked = set(re.findall(r"\]\(([^)#]+)\)", PAGES["README.md"]))
    assert {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")} <= linked
    assert {f"docs/{kind}/README.md" for kind in KINDS_OF_PAGES} <= linked


@pytest.mark.parametrize("kind", KINDS_OF_PAGES)
def test_the_index_of_a_folder_names_every_page(kind: str):
    index = f"docs/{kind}/README.md"
    linked = set(re.findall(r"\]\((\w+\.md)", PAGES[index]))
    assert {path.name for path in ROOT.glob(f"docs/{kind}/*.md")} == linked | {"README.md"}


def test_the_pages_for_users_are_short():
    words = {
        name: len(text.split()) for name, text in PAGES.items() if re.match(r"docs/\w+\.md", name)
    }
    assert sum(words.values()) <= MAX_WORDS_OF_USERS_PAGES, words


@pytest.mark.slow
def test_the_page_of_keys_is_up_to_date():
    remedy = "python -m multicard.cli.keys_page > docs/reference/keys.md"
    assert PAGES["docs/reference/keys.md"] == keys_page.page(), remedy


def test_make_targets_and_modules_that_are_named_exist():
    # which names what is gone
    text = "\n".join(page for name, page in PAGES.items() if name != "CHANGELOG.md")
    code = "\n".join([*FENCED.findall(text), *re.findall(r"`([^`\n]+)`", text)])
    for target in set(re.findall(r"^make ([a-z-]+)", code, re.MULTILINE)):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    for module in set(
        re.findall(r"python -m ((?:benchmarks|multicard|analysis)[a-z_.]*[a-z])", text)
    ):
        assert find_spec(module) is not None, module
    for path in set(re.findall(r"`((?:multicard|analysis|conf|tests|benchmarks)/[\w/.-]+)`", text)):
        assert (ROOT / path).exists(), path


# Of commands that start nothing: what says so
SAID_OF = {
    "dry_run=true": ("sweep.dry-run", "sweep.dry-run-alone"),
    "predict=true": ("predict.title",),
}


def run(
    words: list[str], replaced: dict[str, str], folder: Path, called: Called, entry: str
) -> None:
    """Run a command with these replacements; of a sweep plan all cells, and run those of its first
    axis where the
    others have their last value: each value by itself is for other tests.
    """
    chosen = [word for word in words if word.partition("=")[0] not in replaced]
    # from which the ranks' own follows
    if any(word.startswith("global_batch_size=") for word in words):
        replaced = {key: value for key, value in replaced.items() if key != "batch_size"}
    small = [*(f"{key}={value}" for key, value in replaced.items()), f"hydra.run.dir={folder}"]
    small += [f"hydra.sweep.dir={folder}"]
    swept = [word for word in chosen if re.fullmatch(r"[\w.]+=\w+(,\w+)+", word)] * (
        "dry_run=true" not in words
    )
    # tests/sweep/test_pack.py and tests/decide/test_race_live.py run one,
    # in processes that import torch
    packed = "hydra/launcher=submitit_local" in words or any(
        word.startswith("race=") for word in words
    )
    if len(swept) > 1 or packed:
        code, printed = called(*chosen, *small, "dry_run=true", entry=entry)
        assert code == 0 and {*SAID_OF["dry_run=true"]} & {*codes(printed)}, printed
    if packed:
        return
    for word in swept[1:]:
        key, _, values = word.partition("=")
        chosen[chosen.index(word)] = f"{key}={values.split(',')[-1]}"
    code, printed = called(*chosen, *small, entry=entry)
    if "--help" in words:
        assert "precision" in printed
        return
    assert code == 0, printed
    nothing = [word for word in SAID_OF if word in words]
    if nothing:
        assert {*SAID_OF[nothing[0]]} & {*codes(printed)}, printed
    else:
        assert f"Records: {folder}" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("line", VISION)
def test_a_documented_command_runs(line: str, tmp_path: Path, called: Called):
    words = shlex.split(line)[2:]
    data_set = next((word.partition("=")[2] for word in words if word.startswith("dataset=")), None)
    if "loader=dali" in words and not has_dali():
        pytest.skip("no DALI (make dali)")
    replaced = dict(SHRUNK)
    if any(word.startswith("model=") for word in words):
        del replaced["model.width"]  # which MobileNetV2 alone has
    root = next((word.partition("=")[2] for word in words if word.startswith("dataset.root=")), "")
    if root in OWN:
        replaced |= {"dataset.root": str(FORMS[OWN[root]](tmp_path / "own" / "data"))}
    elif data_set in DATA:
        if not DATA[data_set].exists():
            pytest.skip(f"no {DATA[data_set]}")
        replaced |= {"dataset.root": str(DATA[data_set])}
        replaced |= (
            {"dataset.download": "false"}
            if data_set == "mnist"
            else {"dataset.cache_dir": str(tmp_path)}
        )
    run(words, replaced, tmp_path, called, "train_vision.py")


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "line", [line for line in commands("python measure_script.py") if "examples/" in line]
)
def test_a_script_of_the_examples_is_measured(line: str, tmp_path: Path, called: Called):
    words = [word for word in shlex.split(line)[2:] if not word.startswith("name=")]
    folders = (f"hydra.sweep.dir={tmp_path}", f"hydra.run.dir={tmp_path}")
    short = ("steps=12", "device=cpu", "tracker.mode=disabled", *folders)
    swept = "-m" in words
    code, printed = called(*words, *short, entry="measure_script.py")
    assert code == 0, printed
    cells = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert len(cells) == (4 if swept else 1)
    assert {cell["axes"]["gpus"] for cell in cells} == ({1, 2} if swept else {1})
    for cell in cells:
        assert (
            cell["status"] == "ok" and cell["step_s"]["count"] == 7 and cell["samples_per_s"] > 0
        ), cell
        assert "script.no-process-group" not in cell["seen_codes"], cell["seen"]


def small_model(folder: Path) -> Path:
    """A folder of transformers' with a tiny model, its tokenizer and chat template."""
    folder.mkdir()
    test_folders.byte_tokenizer(folder)
    test_folders.built("llama").save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(test_folders.TEMPLATE)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("line", TUNING)
def test_a_documented_tuning_command_runs(line: str, tmp_path: Path, called: Called):
    words = []
    for word in shlex.split(line)[2:]:
        key, _, value = word.partition("=")
        if value in FILES and not FILES[value].exists():
            pytest.skip(f"no {FILES[value]}")
        if value == OF_TORCHTUNE:
            pytest.skip(f"no weights of {value}")
        if value == OF_TRANSFORMERS:
            words.append(f"{key}={small_model(tmp_path / value)}")
        else:
            words.append(f"{key}={FILES[value]}" if value in FILES else TINY.get(word, word))
    small = dict(TUNING_SHRUNK)
    if any(word.startswith("predict.gpu=") for word in words):
        del small["device"]  # a prediction for a GPU trains on nothing
    run(words, small, tmp_path, called, "tune_llm.py")


@pytest.mark.slow
@pytest.mark.usefixtures("wandb_server")
def test_the_documented_analysis_runs(tmp_path: Path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    names = re.findall(r"^    (\w+)", capsys.readouterr().out, re.MULTILINE)
    for name in ("before", "after", "first", "fast", "mine"):
        sweep(tmp_path / "multirun" / name, test_accuracy=0.995, prediction=records.prediction())
    sweep(tmp_path / "multirun" / "table2", test_accuracy=0.99)  # no copy of the others
    tunings = [
        records.llm(method=method, template="instruct", gpus=gpus)
        for method in ("lora", "dpo")
        for gpus in (1, 2)
    ]
    records.write_all(tmp_path / "multirun" / "peak_memory", *tunings)
    monkeypatch.chdir(tmp_path)
    # tests/analysis/test_train_best.py
    lines = [shlex.split(line)[3:] for line in ANALYSIS if "--train" not in line]
    lines += [
        words for line in commands("multicard ") if (words := shlex.split(line)[1:])[0] in names
    ]
    assert {words[0] for words in lines} == {*names}
    for words in lines:
        # Of runs that were not repeated a gate cannot tell
        expected = GateVerdict.cannot_tell if "--gate" in words else 0
        assert main(words) == expected, words
    assert (tmp_path / "multirun" / "report.html").exists()
    assert list((tmp_path / "outputs" / "figures").glob("*.pdf"))


MOST_BYTES = 400_000
MOST_BYTES_OF_PAGE = 1_300_000
STALE = "python -m docs.pictures makes it again"


def shown(page: Path) -> tuple[list[str], list[str]]:
    """The commands of what to run, which can be copied, and the sections of a report; not its
    sentences, which may be improved, nor what stands as code within them.
    """
    text = page.read_text()
    answer = text[text.index('<section id="answer') :].partition("</section>")[0]
    return re.findall(r"<code>([^<]*)</code><button", answer), re.findall(r'<h2 id="(.*?)"', text)


def test_the_example_is_what_report_makes_of_its_records(tmp_path: Path):
    committed = pictures.DOCS / "example" / "report.html"
    commands, sections = shown(committed)
    assert len(commands) > 1 and (commands, sections) == shown(pictures.example(tmp_path)), STALE
    assert (
        "multirun/example" in committed.read_text()
        and committed.stat().st_size < MOST_BYTES_OF_PAGE
    )


def drawn_rows(picture: Path) -> list[str]:
    """The texts of a picture that begin with a number, as cells and rows of tables do;
    not its sentences.
    """
    texts = [
        text.replace("&#160;", " ")
        for text in re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text())
    ]
    return [text for text in texts if re.match(r"\s*\[?\d", text)]


@pytest.mark.usefixtures("processes")
def test_the_terminal_is_what_the_first_command_prints(tmp_path: Path):
    rows = drawn_rows(pictures.DOCS / "demo.svg")
    assert len(rows) > 8 and drawn_rows(pictures.terminal(tmp_path)) == rows, STALE
    printed = re.sub("<.*?>", "", (tmp_path / "demo.svg").read_text()).replace("&#160;", " ")
    first = re.search(
        r"^python train_vision.py -m (name=first .*)$",
        (pictures.DOCS.parent / "README.md").read_text(),
        re.MULTILINE,
    )
    assert first is not None and all(word in printed for word in first[1].split())


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_the_pictures_of_the_docs_are_made_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert pictures.main([], tmp_path) == 0
    made = {path.stem: path for path in (tmp_path / "img").iterdir()}
    assert {*made} == {path.stem for path in (pictures.DOCS / "img").glob("report-*.png")}
    for name, path in made.items():
        with Image.open(path) as image:
            assert image.size[0] == (1300 if "screen" in name else 585)
            shade = image.convert("L").resize((1, 1)).getpixel((0, 0))
        assert isinstance(shade, int) and (shade > 200 if "light" in name else shade < 60)
        assert path.stat().st_size < MOST_BYTES
    assert pictures.main([str(tmp_path / "absent")], tmp_path) == 1
    assert "absent/first/multirun.yaml" in capsys.readouterr().err


def test_without_a_browser_it_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    assert pictures.main([]) == 1
    assert find(capsys.readouterr().err, "pictures.no-browser", browsers=["no-such-browser"])


def test_the_readme_says_what_was_measured_where():
    """`python -m docs.status` prints the lines."""
    assert "\n".join(status.lines()) in PAGES["README.md"]
