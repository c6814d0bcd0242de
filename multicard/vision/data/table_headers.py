"""Tables whose first line is a row: read as the names of the columns, it would be lost."""

from collections.abc import Sequence
from pathlib import Path

from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.separated_text import SeparatedText, line_above
from multicard.vision.data import table_images
from multicard.vision.data.folder_contents import IMAGE_SUFFIXES
from multicard.vision.data.image_columns import IDS, LABELS, PATHS

KNOWN = {*PATHS, *IDS, *LABELS}


def require_header(path: Path, found: SeparatedText, columns: Sequence[str]) -> None:
    """Refuse a .csv or .tsv whose first line names an image in place of a column."""
    cells = [name.strip() for name in columns]
    if any(cell.lower() in KNOWN for cell in cells):
        return
    image = next((cell for cell in cells if _names_image(path, cell)), None)
    if image is None:
        return
    names = list[str]()
    for cell in cells:
        wanted = "label"
        if cell == image:
            wanted = "path"
        elif part_names.parsed(cell) is not None:
            wanted = "split"
        names.append(f"{wanted}_{len(names) + 1}" if wanted in names else wanted)
    remedy = line_above(path, names, found.delimiter)
    raise Refusal(
        "photographs.no-header",
        f"dataset.root={path}: line 1 is a row, as it names the image {image}, and would be lost"
        f" as the names of the columns; write these above it, as `{remedy}`",
        key="dataset.root",
        file=str(path),
        image=image,
        remedy=remedy,
    )


def _names_image(path: Path, cell: str) -> bool:
    """Whether a cell has an image's ending, or is the name of one beside the table."""
    if Path(cell).suffix.lower() in IMAGE_SUFFIXES:
        return True
    if not cell or not path.parent.is_dir():
        return False
    return table_images.find_images(path.parent.absolute(), [cell]).images[0].is_file()
