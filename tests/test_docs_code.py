"""Every code block of the README and of docs runs, or says above it why it does not.

Python blocks run after the block marked `<!-- set-up -->` (docs/methods.md), YAML blocks are
checked as studies or parts of one, commands run in a folder with small studies in it. A block
under `<!-- not run: REASON -->` is only parsed, as is one under `<!-- command: NAME -->`, which is
run whole elsewhere, as is a study under `<!-- file: NAME -->`, beside the files that it needs; a
block without a language is text.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.main import get_command

from sfumato.cli import app
from sfumato.study import load_study, plan, run_study

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs/assets").rglob("*.md")))
PAGES = [ROOT / "README.md", *DOCUMENTS]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
COMMAND = re.compile(r'(?:^|[ "])sfumato ([^"#\n]+)', re.M)
STUDY_IN_TEXT = re.compile(r"sfumato run (studies/[\w-]+\.yaml)")
RUNS = ("25403a2604ab", "54db9936655c")  # the names of runs that the pages use
TINY_SCENES = "{name: scenes, train: 40, validation: 20, test: 20, size: 16}"
SMALL = f"""
name: small
recipe:
  data: {TINY_SCENES}
  model: {{name: resnet, depth: 8, width: 4, dropout: 0.1}}
  train: {{epochs: 1, batch_size: 20}}
  evaluate: {{resamples: 10}}
methods:
  first: {{}}
  second: {{loss: {{name: cross_entropy, smoothing: 0.1}}}}
"""
SHORT = ["train.epochs=1", "seeds=[0]", "--workers", "1", "--quiet"]
SHRINK = {
    "scenes": [f"data={TINY_SCENES}"],
    "folder": ["data.size=16", "model.depth=8", "model.width=4", "evaluate.severities=[3]"],
}


class Block(NamedTuple):
    page: str
    line: int
    mark: str
    language: str
    text: str

    @property
    def is_not_run(self) -> bool:
        return self.mark.startswith("not run")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("text"))
            yield Block(
                str(page.relative_to(ROOT)),
                line,
                found["mark"] or "",
                found["language"],
                found["text"],
            )


BLOCKS = list(read_blocks())
(SET_UP,) = (block for block in BLOCKS if block.mark == "set-up")


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages name: finished studies, photos, CIFAR-10, predictions."""
    folder = tmp_path_factory.mktemp("furnished")
    (folder / "small.yaml").write_text(SMALL)
    study = load_study(folder / "small.yaml")
    run_study(study, folder / "runs/a", show=False, announce=lambda line: None)
    finished = sorted(path.parent for path in folder.glob("runs/a/runs/*/metrics.json"))
    for run, name in zip(finished, RUNS, strict=True):
        shutil.copytree(run, run.parent / name)
    shutil.copytree(finished[0], folder / "RUN")
    shutil.copy(finished[0] / "predictions/test.npz", folder / "predictions.npz")
    for name in ("b", "heads-scenes", "my-study"):
        shutil.copytree(folder / "runs/a", folder / "runs" / name)
    images, labels = np.zeros((4500, 32, 32, 3), np.uint8), np.arange(4500) % 10
    for part in ("train", "test"):
        np.savez_compressed(folder / f"cifar10-{part}.npz", images=images, labels=labels)
    for label in "ab":
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(20):
            image = Image.new("RGB", (16, 16), (number, 0, 0))
            image.save(folder / "photos" / label / f"{number}.png")
    (folder / "studies").symlink_to(ROOT / "studies")
    return folder


@pytest.fixture
def desk(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in, so that what one block writes does not help the next."""
    folder = shutil.copytree(furnished, tmp_path / "desk", symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def test_blocks_say_what_they_are() -> None:
    assert {block.language for block in BLOCKS} == {"python", "bash", "yaml", ""}
    kinds = [block.mark.partition(":")[0] for block in BLOCKS if block.mark]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"set-up": 1, "command": 3, "not run": 20, "file": 8}


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_runs(block: Block, desk: Path) -> None:
    names: dict[str, Any] = {}
    for part in dict.fromkeys((SET_UP, block)):
        code = compile("\n" * part.line + part.text, part.page, "exec")  # errors show the line
        if not part.is_not_run:
            exec(code, names)


def test_the_first_page_runs_as_pasted(
    sfumato: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order, in an empty folder, with no name that the page itself does not define."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    install, *blocks = (block for block in BLOCKS if block.page == "docs/get-started.md")
    assert install.text.strip() in (ROOT / "README.md").read_text(encoding="utf-8")
    for block in blocks:
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
        for arguments in commands(block):
            assert sfumato(*arguments).status == 0
    assert names["after"] < names["before"] / 2
    assert names["found"].confidence > 0.5


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_the_study_of_a_task_is_whole(
    task: str, sfumato: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in of("yaml") if f"task: {task}" in block.text)
    Path("study.yaml").write_text(block.text)
    done = sfumato("check", "study.yaml")  # a batch of each method, as far as the gradients
    assert done.status == 0, done.stderr


@pytest.mark.parametrize("block", [b for b in of("yaml") if not b.mark], ids=str)
def test_yaml_is_a_study_or_part_of_one(block: Block, tmp_path: Path) -> None:
    study = load_study(write_study(block, tmp_path / "study.yaml"))
    assert block.is_not_run or plan(study)


def test_studies_in_the_text_exist() -> None:
    named = {name for page in PAGES for name in STUDY_IN_TEXT.findall(page.read_text("utf-8"))}
    assert named
    for name in named:
        assert plan(load_study(ROOT / name))


@pytest.mark.parametrize("block", of("bash"), ids=str)
def test_commands_parse(block: Block) -> None:
    group: Any = get_command(app)
    for arguments in commands(block):
        parent = group.make_context("sfumato", list(arguments))
        name, command, rest = group.resolve_command(parent, list(arguments))
        command.make_context(name, rest)


@pytest.mark.parametrize("block", [b for b in of("bash") if not b.mark], ids=str)
def test_commands_run(
    block: Block, sfumato: Callable[..., Any], desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for study in of("yaml"):
        if study.page == block.page and "methods" in study.text:
            write_study(study, desk / "my-study.yaml")
    for arguments in commands(block):
        done = sfumato(*arguments, *shortened(arguments))
        assert done.status == 0, done.stderr


def commands(block: Block) -> list[list[str]]:
    """The arguments of each call of `sfumato`, also behind a launcher or inside its quotes."""
    return [arguments.split() for arguments in COMMAND.findall(block.text)]


def shortened(arguments: list[str]) -> list[str]:
    """What makes a command short enough for a test."""
    if arguments[0] == "analyse":
        return ["--only", "feature_spectrum"]
    if arguments[0] != "run":
        return []
    study = load_study(Path(arguments[1]))
    return [*SHRINK[study.recipe["data"]["name"]], *SHORT]


def write_study(block: Block, path: Path) -> Path:
    """The block as a study file: as it is where it has methods, else completed."""
    content = yaml.safe_load(block.text)
    if "methods" in content:
        path.write_text(block.text)
        return path
    content = content if {"recipe", "methods"} & set(content) else {"recipe": content}
    recipe = {"data": "scenes", "model": "resnet", **content.get("recipe", {})}
    study = {"name": "part", "methods": {"baseline": {}}, **content, "recipe": recipe}
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path
