"""Commands about what studies are made of: data to corrupt, parts to name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from sfumato.cli.shared import Quiet, console, say_where
from sfumato.engine.config.part_kinds import Plural

if TYPE_CHECKING:
    from sfumato.data import ArrayDataset


def corrupt(
    data: Annotated[
        str,
        typer.Argument(help="An .npz file of images and labels, or a data spec (its test set)."),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    layout: Annotated[
        Literal["arrays", "folders"],
        typer.Option(help="arrays as CIFAR-10-C, or folders as ImageNet-C."),
    ] = "arrays",
    extra: Annotated[bool, typer.Option("--extra", help="Also the four extra types.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random damage.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Write a corrupted copy of a data set: 15 types, 5 severities, in the standard layout.

    Example: `sfumato corrupt test.npz test-c`, `sfumato corrupt "{name: scenes, test: 500}" out`
    """
    from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, write_corrupted
    from sfumato.engine import ConfigError
    from sfumato.engine.runs.progress import progress_bar

    clean = _read_clean(data)
    if clean.vocabulary is not None:
        raise ConfigError("data: these are texts, and corruptions are of images")
    names = (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if extra else CORRUPTIONS
    with progress_bar("corrupting", len(names) * len(SEVERITIES), show=not quiet) as bar:
        write_corrupted(
            out,
            clean.images[:],
            clean.labels[:],
            layout=layout,
            classes=clean.classes,
            names=names,
            seed=seed,
            progress=lambda name, severity: bar.advance(f"{name} {severity}"),
        )
    say_where(f"{len(clean)} images x {len(names)} types x 5 severities", out)


def list_parts(
    what: Annotated[Literal["all", Plural], typer.Argument(help="What to list.")] = "all",
    preview: Annotated[
        str | None, typer.Option(help="Write a picture of this data source (scenes).")
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the preview.")] = Path("preview.png"),
) -> None:
    """Show what a study file can name, with parameters and defaults.

    Example: `sfumato list losses`, `sfumato list data --preview scenes --out scenes.png`
    """
    from sfumato.study.catalogue import catalogue

    if preview is not None:
        _preview(preview, out)
        return
    for kind, entries in catalogue().items():
        if what in ("all", kind):
            table = Table("name", "parameters", title=kind, title_justify="left")
            for name, text in entries.items():
                table.add_row(Text(name, style="bold"), Text(text))
            console.print(table)


def _read_clean(data: str) -> ArrayDataset:
    from sfumato._core.yaml_files import parse_yaml
    from sfumato.data import load_data, read_npz
    from sfumato.engine import ConfigError

    try:
        if data.endswith(".npz"):
            return read_npz(data)
        return load_data(parse_yaml(data, by_hand=True)).test
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data: {error}") from None


def _preview(source: str, out: Path) -> None:
    if source != "scenes":
        raise typer.BadParameter(f"only 'scenes' has a preview, got {source!r}")
    from sfumato.data import scenes

    scenes.preview(out)
    say_where("Preview", out)
