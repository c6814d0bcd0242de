"""Make the example report and the pictures of the pages: docs/example, docs/demo.svg, docs/img.

    python -m docs.pictures [MULTIRUN]

They show the records of two sweeps in docs/example/records: `first` is the README's first command,
`example` the sweep of the report. If MULTIRUN is given, its sweeps replace these records first;
`make example` measures both. The report is drawn with Playwright (requirements-dev.txt) and
Chromium.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO, StringIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from unittest import mock

import yaml
from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright
from rich.console import Console
from rich.text import Text

from analysis import report, rerun_commands
from analysis.runs import load
from multicard import messages
from multicard.messages import Message, Refusal
from multicard.records import steps
from multicard.records.run_folder import replacing

DOCS = Path(__file__).parent
RECORDS = DOCS / "example" / "records"
RECORD_FILES = ("result.json", "environment.json")  # The records omit a run's samples and logs.
# This code runs the README's first command. It runs in another folder, but shows commands as they
# are typed in a checkout.
AS_IN_CHECKOUT = f"""
import runpy, sys
sys.path.insert(0, {str(DOCS.parent)!r})
from multicard import messages
messages.in_checkout = lambda: True
sys.argv[0] = "train_vision.py"
runpy.run_path({str(DOCS.parent / "train_vision.py")!r}, run_name="__main__")
"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The size of a window in pixels, and its device scale factor.
WINDOWS = {
    "screen": (ViewportSize(width=1300, height=1465), 1.0),
    "phone": (ViewportSize(width=390, height=1440), 1.5),
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DRAWING_MS = 1500  # After this time, the visible figures are drawn.
COLORS = 96  # A picture has few colors so that its file is small.
COLUMNS = 80  # the width of the terminal
TERMINAL = {
    "TERM": "xterm-256color",
    "COLUMNS": str(COLUMNS),
    "NO_COLOR": "",
    "MULTICARD_MESSAGES": "sentences",
}


def main(words: Sequence[str] | None = None, out: Path = DOCS) -> int:
    """Write everything below `out`.

    Returns:
        0, or 1 after a line that says why the pictures cannot be made.
    """
    parser = argparse.ArgumentParser(
        "python -m docs.pictures", description="The example report and its pictures"
    )
    parser.add_argument("multirun", metavar="MULTIRUN", nargs="?", type=Path)
    multirun = parser.parse_args(words).multirun
    browser_path = next((path for path in map(shutil.which, BROWSERS) if path is not None), None)
    try:
        if browser_path is None:
            raise Refusal(
                "pictures.no-browser",
                f"no browser; install {' or '.join(BROWSERS)}",
                browsers=list(BROWSERS),
            )
        if multirun is not None:
            _replace_records(multirun)
        page = example(out)
        print(page, terminal(out), sep="\n")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
            )
            for window in WINDOWS:
                for scheme in SCHEMES:
                    print(_picture(browser, page, window, scheme, out / "img"))
    except (ValueError, OSError) as error:
        print(Message("pictures.refused", f"refused: {error}", reason=str(error)), file=sys.stderr)
        return 1
    return 0


def _replace_records(multirun: Path) -> None:
    """Replace the records with the sweeps in `multirun`, without this machine's name and paths."""
    for sweep in ("first", "example"):
        measured_sweep = multirun / sweep
        target = RECORDS / sweep
        hydra = yaml.safe_load((measured_sweep / rerun_commands.SWEEP_FILE).read_text())["hydra"]
        shutil.rmtree(target, ignore_errors=True)
        records = chain.from_iterable(measured_sweep.glob(f"*/{name}") for name in RECORD_FILES)
        for path in sorted(records):
            (target / path.parent.name).mkdir(parents=True, exist_ok=True)
            text = json.dumps(json.loads(path.read_text()), separators=(",", ":"))
            text = text.replace(f'"{platform.node()}"', '"node1"')
            (target / path.parent.name / path.name).write_text(f"{text}\n")
        command = {
            "overrides": {"task": hydra["overrides"]["task"]},
            "job": {"config_name": hydra["job"]["config_name"]},
        }
        (target / rerun_commands.SWEEP_FILE).write_text(
            yaml.safe_dump({"hydra": command}, sort_keys=False)
        )


@contextlib.contextmanager
def _measured_folder() -> Iterator[None]:
    """Work in a folder in which both sweeps have been measured.

    Commands are shown as they are typed in a checkout.
    """
    in_checkout = mock.patch.object(messages, "in_checkout", lambda: True)
    with TemporaryDirectory() as folder, contextlib.chdir(folder), in_checkout:
        shutil.copytree(RECORDS, "multirun")
        yield


def example(out: Path) -> Path:
    """Write the report of the sweep `example`, and return its path."""
    page = out.absolute() / "example" / report.NAME
    page.parent.mkdir(exist_ok=True)
    with _measured_folder():
        report.write([Path("multirun", "example")], page, title=None, mix=False)
    return page


def terminal(out: Path) -> Path:
    """Draw what the sweep `first` prints on a terminal, and return the picture's path.

    Its command runs in a folder where it was measured before.
    """
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    with _measured_folder():
        # The records do not include the file of steps, without which a run is not reused.
        for run in Path("multirun", "first").glob("*/result.json"):
            # A Parquet file ends with these bytes.
            run.with_name(steps.STEPS).write_bytes(b"PAR1")
        command = rerun_commands.of_sweeps(load.read_runs([Path("multirun", "first")]).runs)[0]
        words = [sys.executable, "-c", AS_IN_CHECKOUT, *shlex.split(command)[2:]]
        # `script` gives the command a terminal.
        command_line = ["script", "-qec", shlex.join(words), "/dev/null"]
        done = subprocess.run(
            command_line,
            env=os.environ | TERMINAL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        raise Refusal(
            "pictures.command-failed",
            f"{command}: {done.stdout}",
            command=command,
            printed=done.stdout,
        )
    console.print(Text.assemble(("$ ", "bold green"), command), soft_wrap=False)
    console.print(Text.from_ansi(done.stdout.replace("measured before: ", "")))
    path = out / "demo.svg"
    svg = console.export_svg(title="multicard", unique_id="demo")
    # Without @font-face, the picture downloads nothing.
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    return path


def _picture(
    browser: Browser, page: Path, window: str, scheme: Literal["light", "dark"], out: Path
) -> Path:
    """Write the top of the page as a picture, and return its path."""
    size, scale = WINDOWS[window]
    browser_page = browser.new_page(viewport=size, device_scale_factor=scale, color_scheme=scheme)
    browser_page.goto(page.as_uri())
    browser_page.wait_for_timeout(DRAWING_MS)
    picture = Image.open(BytesIO(browser_page.screenshot())).convert("RGB").quantize(COLORS)
    browser_page.close()
    path = out / f"report-{window}-{scheme}.png"
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        picture.save(file, "png", optimize=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
