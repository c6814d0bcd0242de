"""The pictures of a report in docs/img: light and dark, on a screen and on a phone.

    python -m docs.pictures FOLDER...

They show the report on the runs below FOLDER. Playwright (requirements-dev.txt) and a Chromium draw them.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from analysis import report
from multicard.records.run_folder import replacing

OUT = Path(__file__).parent / "img"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Window, in pixels, and picture pixels for each of its own
WINDOWS = {"screen": (ViewportSize(width=1300, height=2200), 1.0), "phone": (ViewportSize(width=390, height=1750), 1.5)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DRAWN_MS = 1500  # until the figures in sight are drawn
COLOURS = 96  # of a picture, so that its file is small


def main(words: Sequence[str] | None = None) -> int:
    """Write the pictures; the exit code is 1, after a line that says why, without a browser or runs."""
    parser = argparse.ArgumentParser("python -m docs.pictures", description="The pictures of a report in docs/img")
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path)
    folders = parser.parse_args(words).folders
    found = next((path for path in map(shutil.which, BROWSERS) if path is not None), None)
    try:
        if found is None:
            raise ValueError(f"no browser; install {' or '.join(BROWSERS)}")
        with TemporaryDirectory() as folder, sync_playwright() as playwright:
            page = Path(folder) / report.NAME
            report.write(folders, page, title=None, mix=False)
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
            for window in WINDOWS:
                for scheme in SCHEMES:
                    print(_write(browser, page, window, scheme))
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


def _write(browser: Browser, page: Path, window: str, scheme: Literal["light", "dark"]) -> Path:
    """Write the top of the page as one picture."""
    size, scale = WINDOWS[window]
    opened = browser.new_page(viewport=size, device_scale_factor=scale, color_scheme=scheme)
    opened.goto(page.as_uri())
    opened.wait_for_timeout(DRAWN_MS)
    picture = Image.open(BytesIO(opened.screenshot())).convert("RGB").quantize(COLOURS)
    opened.close()
    path = OUT / f"report-{window}-{scheme}.png"
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        picture.save(file, "png", optimize=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
