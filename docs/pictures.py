"""The example report and the pictures of the pages: docs/example, docs/demo.svg, docs/img.

    python -m docs.pictures [MULTIRUN]

They are made of the records of two sweeps in docs/example/records: `first`, the README's first
command, and `example`. Those in MULTIRUN replace them (`make example` measures both). Playwright
(requirements-dev.txt) and a Chromium draw the report.
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
KEPT = ("result.json", "environment.json")  # of a run: neither samples nor logs
# The README's first command, which shows commands as in a checkout,
# though it runs in another folder
AS_IN_CHECKOUT = f"""
import runpy, sys
sys.path.insert(0, {str(DOCS.parent)!r})
from multicard import messages
messages.in_checkout = lambda: True
sys.argv[0] = "train_vision.py"
runpy.run_path({str(DOCS.parent / "train_vision.py")!r}, run_name="__main__")
"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Window, in pixels, and picture pixels for each of its own
WINDOWS = {
    "screen": (ViewportSize(width=1300, height=1465), 1.0),
    "phone": (ViewportSize(width=390, height=1440), 1.5),
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DRAWN_MS = 1500  # until the figures in sight are drawn
COLOURS = 96  # of a picture, so that its file is small
COLUMNS = 80  # of the terminal
TERMINAL = {
    "TERM": "xterm-256color",
    "COLUMNS": str(COLUMNS),
    "NO_COLOR": "",
    "MULTICARD_MESSAGES": "sentences",
}


def main(words: Sequence[str] | None = None, out: Path = DOCS) -> int:
    """Write everything below `out`; the exit code is 1, after a line that says why,
    without a browser or records.
    """
    parser = argparse.ArgumentParser(
        "python -m docs.pictures", description="The example report and its pictures"
    )
    parser.add_argument("multirun", metavar="MULTIRUN", nargs="?", type=Path)
    multirun = parser.parse_args(words).multirun
    found = next((path for path in map(shutil.which, BROWSERS) if path is not None), None)
    try:
        if found is None:
            raise Refusal(
                "pictures.no-browser",
                f"no browser; install {' or '.join(BROWSERS)}",
                browsers=list(BROWSERS),
            )
        if multirun is not None:
            _keep(multirun)
        page = example(out)
        print(page, terminal(out), sep="\n")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=found, args=["--no-sandbox", "--disable-gpu"]
            )
            for window in WINDOWS:
                for scheme in SCHEMES:
                    print(_picture(browser, page, window, scheme, out / "img"))
    except (ValueError, OSError) as error:
        print(Message("pictures.refused", f"refused: {error}", reason=str(error)), file=sys.stderr)
        return 1
    return 0


def _keep(multirun: Path) -> None:
    """Replace the records by those of the sweeps in `multirun`,
    without this machine's name and paths.
    """
    for sweep in ("first", "example"):
        measured = multirun / sweep
        kept = RECORDS / sweep
        hydra = yaml.safe_load((measured / rerun_commands.SWEEP_FILE).read_text())["hydra"]
        shutil.rmtree(kept, ignore_errors=True)
        records = chain.from_iterable(measured.glob(f"*/{name}") for name in KEPT)
        for path in sorted(records):
            (kept / path.parent.name).mkdir(parents=True, exist_ok=True)
            text = json.dumps(json.loads(path.read_text()), separators=(",", ":"))
            text = text.replace(f'"{platform.node()}"', '"node1"')
            (kept / path.parent.name / path.name).write_text(f"{text}\n")
        command = {
            "overrides": {"task": hydra["overrides"]["task"]},
            "job": {"config_name": hydra["job"]["config_name"]},
        }
        (kept / rerun_commands.SWEEP_FILE).write_text(
            yaml.safe_dump({"hydra": command}, sort_keys=False)
        )


@contextlib.contextmanager
def _measured() -> Iterator[None]:
    """The working directory is as a checkout in which both sweeps have been measured: commands are
    shown as they are typed there.
    """
    in_checkout = mock.patch.object(messages, "in_checkout", lambda: True)
    with TemporaryDirectory() as folder, contextlib.chdir(folder), in_checkout:
        shutil.copytree(RECORDS, "multirun")
        yield


def example(out: Path) -> Path:
    """Write the report of the sweep `example`."""
    page = out.absolute() / "example" / report.NAME
    page.parent.mkdir(exist_ok=True)
    with _measured():
        report.write([Path("multirun", "example")], page, title=None, mix=False)
    return page


def terminal(out: Path) -> Path:
    """Write what the sweep `first` prints on a terminal: its
    command is run where it was measured before.
    """
    drawn = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    with _measured():
        # records are kept without their steps
        for run in Path("multirun", "first").glob("*/result.json"):
            # how the file ends; a run without it is not taken
            run.with_name(steps.STEPS).write_bytes(b"PAR1")
        command = rerun_commands.of_sweeps(load.read([Path("multirun", "first")]).runs)[0]
        words = [sys.executable, "-c", AS_IN_CHECKOUT, *shlex.split(command)[2:]]
        # which gives the command a terminal
        typed = ["script", "-qec", shlex.join(words), "/dev/null"]
        done = subprocess.run(
            typed, env=os.environ | TERMINAL, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise Refusal(
            "pictures.command-failed",
            f"{command}: {done.stdout}",
            command=command,
            printed=done.stdout,
        )
    drawn.print(Text.assemble(("$ ", "bold green"), command), soft_wrap=False)
    drawn.print(Text.from_ansi(done.stdout.replace("measured before: ", "")))
    path = out / "demo.svg"
    svg = drawn.export_svg(title="multicard", unique_id="demo")
    # pictures fetch nothing
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    return path


def _picture(
    browser: Browser, page: Path, window: str, scheme: Literal["light", "dark"], out: Path
) -> Path:
    """Write the top of the page as one picture."""
    size, scale = WINDOWS[window]
    opened = browser.new_page(viewport=size, device_scale_factor=scale, color_scheme=scheme)
    opened.goto(page.as_uri())
    opened.wait_for_timeout(DRAWN_MS)
    picture = Image.open(BytesIO(opened.screenshot())).convert("RGB").quantize(COLOURS)
    opened.close()
    path = out / f"report-{window}-{scheme}.png"
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        picture.save(file, "png", optimize=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
