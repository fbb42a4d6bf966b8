"""Images per second from JPEG files at 224 pixels, against torchvision's ImageFolder + DataLoader.

Run: python benchmarks/loading.py [--images 400] [--rounds 5] [--workers 2] [--memory]
The claim: with as many worker processes, crops and flips are at least as fast as torchvision's with
its usual loader (Pillow), and a pixel policy on top (RandAugment, batched) costs less than
torchvision's for each image. Decoders are timed alone, on the same bytes, with their settings for
exact pixels. `--memory` instead trains 200 steps on 100,000 files: at most 1.5 GB more than the
interpreter, workers included, after a start of seconds, which the index of the first one shortens.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as T
from harness import machine_facts, print_table, time_interleaved, write_results
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from sfumato.augment import Augment, RandAugment, Recipe, ResizedCrop
from sfumato.data import TensorLoader, load_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, BATCH = 224, 50


def photo(draw: np.random.Generator, width: int = 500, height: int = 375) -> Image.Image:
    """Soft colours with a grain, which compress about as photographs do."""
    few = draw.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC))
    grain = draw.normal(0, 8, smooth.shape)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def make_folder(root: Path, images: int) -> None:
    draw = np.random.default_rng(0)
    for number in range(images):
        folder = root / f"class{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(draw).save(folder / f"{number:05}.jpg", quality=90)


def loaders(root: Path, workers: int) -> dict[str, Any]:
    """Name to an iterable of batches."""
    data = load_folder(root=root, size=SIZE, in_memory=False, test="all").test
    finish = [T.ToTensor(), T.Normalize(MEAN, STD)]
    crop = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]
    padded = [T.Resize(SIZE), T.CenterCrop(SIZE), T.RandomHorizontalFlip()]
    padded.append(T.RandomCrop(SIZE, padding=28))

    def ours(augment: Any) -> TensorLoader:
        options: dict[str, Any] = {"mean": MEAN, "std": STD, "workers": workers}
        return TensorLoader(data, BATCH, shuffle=True, augment=augment, **options)

    def theirs(steps: list[Any]) -> DataLoader[Any]:
        folder = ImageFolder(str(root), T.Compose([*steps, *finish]))
        keep = workers > 0
        return DataLoader(folder, BATCH, shuffle=True, num_workers=workers, persistent_workers=keep)

    return {
        "resized crop, flip": ours(ResizedCrop()),
        "resized crop, flip: torchvision": theirs(crop),
        "padded crop, flip": ours(Augment(flip=True, crop=28)),
        "padded crop, flip: torchvision": theirs(padded),
        "resized crop, flip, RandAugment": ours(
            Recipe(resized_crop=ResizedCrop(), policy=RandAugment())
        ),
        "resized crop, flip, RandAugment: torchvision": theirs([*crop, T.RandAugment()]),
    }


def loading_rows(root: Path, images: int, rounds: int, workers: int) -> list[dict[str, Any]]:
    def run(batches: Any) -> Callable[[], None]:
        def whole() -> None:
            for _ in batches:
                pass

        return whole

    calls = {name: run(batches) for name, batches in loaders(root, workers).items()}
    seconds = time_interleaved(calls, repeats=rounds, warmup=1)
    rows = []
    for name, taken in seconds.items():
        row: dict[str, Any] = {"case": name, "images_per_s": images / statistics.median(taken)}
        other = seconds.get(f"{name}: torchvision")
        row["times_torchvision"] = (
            statistics.median(b / a for a, b in zip(taken, other, strict=True)) if other else 1.0
        )
        rows.append(row)
    plain, policy = "resized crop, flip", "resized crop, flip, RandAugment"
    for kind in ("", ": torchvision"):
        extra = [
            1e3 * (b - a) / images
            for a, b in zip(seconds[plain + kind], seconds[policy + kind], strict=True)
        ]
        found = statistics.median(extra)
        rows.append({"case": f"RandAugment alone, ms an image{kind}", "milliseconds": found})
    return rows


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """Whatever is installed, each with exact DCT and smooth upsampling, to RGB."""
    found: dict[str, Callable[[bytes], Any]] = {
        "Pillow": lambda content: np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    }
    try:
        from simplejpeg import decode_jpeg

        found["simplejpeg"] = decode_jpeg
    except ImportError:
        pass
    try:
        from torchvision.io import ImageReadMode, decode_jpeg as by_torchvision

        found["torchvision.io (deprecated)"] = lambda content: by_torchvision(
            torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB
        )
    except ImportError:
        pass
    return found


def decoding_rows(root: Path, rounds: int) -> list[dict[str, Any]]:
    contents = [path.read_bytes() for path in sorted(root.rglob("*.jpg"))[:20]]
    calls = {
        name: lambda decode=decode: [decode(each) for each in contents]
        for name, decode in decoders().items()
    }
    seconds = time_interleaved(calls, repeats=rounds)
    return [
        {"case": f"decode: {name}", "milliseconds": 1e3 * statistics.median(taken) / len(contents)}
        for name, taken in seconds.items()
    ]


def memory_row(workers: int, files: int = 100_000, steps: int = 200) -> dict[str, Any]:
    """Start-up, and 200 steps of a small network, on a folder of `files` links to 300 JPEGs."""
    from sfumato.models import resnet

    with tempfile.TemporaryDirectory() as name:
        root, draw = Path(name), np.random.default_rng(0)
        originals = []
        for number in range(300):
            originals.append(root / f"{number}.jpg")
            photo(draw, 128, 96).save(originals[-1], quality=85)
        for number in range(files):
            folder = root / "set" / f"class{number % 100:03}"
            folder.mkdir(parents=True, exist_ok=True)
            os.link(originals[number % 300], folder / f"{number:06}.jpg")
        os.environ["SFUMATO_CACHE"] = str(root / "cache")
        time.sleep(3)  # folders that have just changed are not kept in an index
        before = _memory()
        starts = [_seconds_to_start(root / "set") for _ in range(2)]
        data = load_folder(root=root / "set", size=64, in_memory=False).train
        model = resnet(8, num_classes=100, width=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = TensorLoader(data, 64, shuffle=True, augment=ResizedCrop(), workers=workers)
        largest = 0
        for number, batch in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            largest = max(largest, _memory() if number % 20 == 19 else 0)
            if number + 1 == steps:
                break
        del loader
    return {
        "case": f"{files} files, {steps} steps, {workers} workers",
        "start_s": starts[0],
        "start_with_index_s": starts[1],
        "gb_above_interpreter": (largest - before) / 1e9,
    }


def _seconds_to_start(root: Path) -> float:
    began = time.perf_counter()
    load_folder(root=root, size=64, in_memory=False)
    return time.perf_counter() - began


def _memory() -> int:
    """Bytes of this process and its workers, pages that they share counted once (Linux)."""
    processes = [os.getpid(), *(each.pid for each in multiprocessing.active_children())]
    total = 0
    for each in processes:
        lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024 * total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.memory:
        found = memory_row(options.workers)
        print_table([found])
        print(write_results("loading_memory", [found]))
        return
    with tempfile.TemporaryDirectory() as name:
        make_folder(Path(name), options.images)
        rows = loading_rows(Path(name), options.images, options.rounds, options.workers)
        rows += decoding_rows(Path(name), options.rounds)
    for row in rows:
        print_table([row])
    print(machine_facts())
    print(write_results("loading", [*rows, vars(options)]))


if __name__ == "__main__":
    main()
