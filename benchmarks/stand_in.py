"""A folder with the names, numbers and shapes of a large set and nothing in it, to plan a study on.

Run: python benchmarks/stand_in.py sets/imagenet [--train 1281167] [--val 50000] [--classes 1000]
Then: sfumato run studies/papers/acls-table3-imagenet.yaml --dry-run --data sets
64 generated JPEGs are linked under as many names as the set has files, in ILSVRC's layout, so that
an index of its size is scanned and files of its shape are read, in 10 MB of disk and some for the
names. Nothing can be learnt from it: it is for `--dry-run`, before the set itself is there.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from loading import photo

ORIGINALS = 64  # links to one file are limited: 65,000 on ext4


def make_stand_in(
    root: Path, *, train: int, val: int, classes: int, width: int = 500, height: int = 375
) -> None:
    """Write `root/train` and `root/val` with a folder for each class, all of about one size.

    Raises:
        FileExistsError: there is something in `root` already.
    """
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(f"{root}: is not empty; name a folder that is yet to be made")
    draw, originals = np.random.default_rng(0), root.parent / f"{root.name}-originals"
    originals.mkdir(parents=True, exist_ok=True)
    files = [originals / f"{number}.JPEG" for number in range(ORIGINALS)]
    for file in files:
        photo(draw, width, height).save(file, quality=96)  # about 115 kB, as those of ILSVRC
    for part, count in (("train", train), ("val", val)):
        folders = [root / part / f"n{number:08}" for number in range(classes)]
        for folder in folders:
            folder.mkdir(parents=True)
        for number in range(count):
            name = folders[number % classes] / f"{number:08}.JPEG"
            os.link(files[number % ORIGINALS], name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--train", type=int, default=1_281_167)
    parser.add_argument("--val", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    make_stand_in(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
