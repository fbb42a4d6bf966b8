"""A study file for a folder of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sfumato._core.text import visible
from sfumato.cli.new_study import look_at_folder, study_text
from sfumato.data.sources.folders import load_folder
from sfumato.engine import ConfigError
from sfumato.study import load_study, plan


def photos(root: Path, counts: dict[str, int], size: tuple[int, int] = (40, 30)) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", size, (number, 0, 0)).save(root / name / f"{number}.png")
    return root


def test_counts_sizes_and_what_is_possible(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", {"cat": 60, "dog": 10})
    facts = look_at_folder(root)
    assert facts.counts == {"cat": 60, "dog": 10}
    assert (facts.training, facts.testing) == (50, 14)
    assert (facts.sizes, facts.is_uniform, facts.size, facts.margin) == ((30, 30), True, 30, 6.0)
    text = study_text("my-study", "photos", facts)
    assert "70 images of 2 classes, of one size" in text
    assert "little can be said of: dog" in text
    assert "Classes differ in size, 10 to 60" in text


def test_parts_of_its_own(tmp_path: Path) -> None:
    for part, count in (("train", 20), ("test", 6)):
        photos(tmp_path / "photos" / part, {"a": count, "b": count})
    facts = look_at_folder(tmp_path / "photos")
    assert (facts.is_divided, facts.training, facts.testing) == (True, 36, 12)


def test_written_file_is_a_study(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    photos(tmp_path / "photos", {f"class {number}": 6 for number in range(11)})
    done = sfumato("new", "mine: #1", "--data", "photos")
    assert done.status == 0, done.stderr
    assert "66 images of 11 classes" in done.stdout
    study = load_study(tmp_path / "mine: #1.yaml")
    assert study.name == "mine: #1"
    assert len(plan(study)) == 15
    again = sfumato("new", "mine: #1", "--data", "photos")
    assert again.status == 2
    assert "exists already" in again.stderr


@pytest.mark.slow
def test_written_file_passes_check(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    photos(tmp_path / "photos", {"cat": 30, "dog": 30})
    assert sfumato("new", "mine", "--data", "photos").status == 0
    done = sfumato("check", "mine.yaml")
    assert done.status == 0, done.stderr
    assert "no mistakes found" in done.stdout


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"cat": 9}, "needs at least two"),
        ({"cat": 9, "dog": 4}, "'dog' has 4 images"),
        ({"cat": 9, "dog": 0}, "without images"),
    ],
)
def test_what_no_study_can_be_run_on(tmp_path: Path, counts: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        look_at_folder(photos(tmp_path / "photos", counts))


def test_broken_images_are_counted_and_left_out(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", {"cat": 6, "dog": 6})
    (root / "cat" / "0.png").write_bytes(b"no image")
    facts = look_at_folder(root)
    assert (facts.looked_at, facts.unreadable) == (12, 1)
    text = study_text("mine", str(root), facts)
    assert "# 1 of 12 files can't be read; on_bad_image: skip leaves such files out" in text
    assert "size: 30, on_bad_image: skip}" in text
    for path in root.glob("*/*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"no image can be read: .*0\.png: unreadable image"):
        look_at_folder(root)


def test_other_files_are_refused_as_a_run_does(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", {"cat": 6, "dog": 6})
    (root / "notes.txt").write_text("beside the classes")
    look_at_folder(root)
    (root / "cat" / "notes.txt").write_text("among the images")
    message = r"notes\.txt: is no image; .*Move it out of the class folder"
    with pytest.raises(ConfigError, match=message):
        look_at_folder(root)
    with pytest.raises(ValueError, match=message):
        load_folder(root=root, size=8)


def test_a_study_in_another_folder_has_the_name_of_its_file(
    tmp_path: Path, sfumato: Callable[..., Any]
) -> None:
    photos(tmp_path / "photos", {"cat": 6, "dog": 6})
    (tmp_path / "studies").mkdir()
    assert sfumato("new", "studies/mine", "--data", "photos").status == 0
    assert load_study(tmp_path / "studies" / "mine.yaml").name == "mine"


ODD = ("caf\udce9", "b\x7f\x85\uffff", "\x1b]0;taken\x07")  # the first is no UTF-8


def test_folders_may_have_any_name(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    root = f'photos {" ".join(ODD)} "# : \n'
    photos(tmp_path / root, dict.fromkeys(ODD, 6), (16, 16))
    done = sfumato("new", "odd", "--data", root)
    assert done.status == 0, done.stderr
    assert visible(done.stdout) == done.stdout
    study = load_study(tmp_path / "odd.yaml")
    assert study.recipe["data"]["root"] == root
    small = ("train.epochs=1", "evaluate.corruptions=[]", "evaluate.resamples=20")
    only = ("--only", "cross entropy", "--seeds", "0", "--quiet")
    run = sfumato("run", "odd.yaml", *small, "model={name: resnet, depth: 8, width: 4}", *only)
    assert run.status == 0, run.stderr
    page = (tmp_path / "runs/odd/report/index.html").read_text(encoding="utf-8")
    assert r"caf\\xe9" in page
    folder = next((tmp_path / "runs/odd/runs").glob("*/metrics.json")).parent
    audit = sfumato("audit", str(folder), "--resamples", "5", "--quiet")
    assert audit.status == 0, audit.stderr
    for outcome in (run, audit):
        assert visible(outcome.stdout + outcome.stderr) == outcome.stdout + outcome.stderr
