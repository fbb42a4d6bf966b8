"""Sets of Hugging Face's `datasets`."""

from __future__ import annotations

import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.data import load_data

slow = pytest.mark.slow  # the import of `datasets` takes seconds


@pytest.fixture
def hub() -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


def picture(value: int, side: int = 16) -> Image.Image:
    return Image.fromarray(np.full((side, side, 3), value, np.uint8))


def table(hub: Any, count: int, *, start: int = 0, labels: Any = None, feature: Any = None) -> Any:
    """Images whose grey level is their number, of two classes in turn."""
    kind = hub.ClassLabel(names=["cat", "dog"]) if feature is None else feature
    content = {
        "image": [picture(start + place) for place in range(count)],
        "label": [place % 2 for place in range(count)] if labels is None else labels,
    }
    features = hub.Features({"image": hub.Image(), "label": kind})
    return hub.Dataset.from_dict(content, features=features)


@slow
def test_parquet_folder_has_its_splits(hub: Any, tmp_path: Path) -> None:
    table(hub, 10).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    table(hub, 4, start=100).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    data = load_data({"name": "huggingface", "path": str(tmp_path), "validation": 2})
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 2, 4)
    assert data.classes == ("cat", "dog")
    assert data.test.images[:, 0, 0, 0].tolist() == [100, 101, 102, 103]
    assert data.test.labels.tolist() == [0, 1, 0, 1]


@slow
def test_saved_set_is_divided(hub: Any, tmp_path: Path) -> None:
    table(hub, 20).save_to_disk(tmp_path / "saved")
    data = load_data({"name": "huggingface", "path": str(tmp_path / "saved"), "size": 8})
    assert (len(data.train), len(data.validation), len(data.test)) == (14, 2, 4)
    assert data.train.images.shape[1:] == (3, 8, 8)


@slow
def test_dictionary_on_disk_with_its_validation(hub: Any, tmp_path: Path) -> None:
    parts = {"train": table(hub, 8), "validation": table(hub, 4), "test": table(hub, 6)}
    hub.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = load_data({"name": "huggingface", "path": str(tmp_path / "saved")})
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 4, 6)


@slow
def test_folder_of_images(hub: Any, tmp_path: Path) -> None:
    for split, count in (("train", 5), ("test", 2)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for place in range(count):
                picture(place).save(tmp_path / split / name / f"{place}.png")
    data = load_data({"name": "huggingface", "path": str(tmp_path), "validation": 2})
    assert (len(data.train), len(data.test), data.classes) == (8, 4, ("cat", "dog"))


@slow
def test_one_file_with_plain_columns(hub: Any, tmp_path: Path) -> None:
    """Bytes and strings, as other tools write Parquet."""
    import pyarrow
    from pyarrow import parquet

    encoded = []
    for place in range(10):
        content = io.BytesIO()
        picture(place).save(content, "PNG")
        encoded.append({"bytes": content.getvalue(), "path": None})
    columns = {"picture": encoded, "kind": ["b", "a"] * 5}
    parquet.write_table(pyarrow.table(columns), tmp_path / "all.parquet")
    spec = {"name": "huggingface", "path": str(tmp_path / "all.parquet")}
    data = load_data({**spec, "image": "picture", "label": "kind", "validation": 2})
    assert data.classes == ("a", "b")
    levels = data.test.images[:, 0, 0, 0]
    assert data.test.labels.tolist() == (1 - levels % 2).tolist()
    with pytest.raises(ValueError, match=r"no column 'pictur' \(did you mean 'picture'\?\)"):
        load_data({**spec, "image": "pictur", "label": "kind"})
    with pytest.raises(ValueError, match="no test split to limit"):
        load_data({**spec, "image": "picture", "label": "kind", "limit_test": 3})


@slow
def test_refusals_of_content(hub: Any, tmp_path: Path) -> None:
    parts = {"train": table(hub, 4), "validation": table(hub, 4)}
    hub.DatasetDict(parts).save_to_disk(tmp_path / "two")
    spec: dict[str, Any] = {"name": "huggingface", "path": str(tmp_path / "two")}
    with pytest.raises(ValueError, match="test_split: validation"):
        load_data(spec)
    assert len(load_data({**spec, "test_split": "validation", "validation": 1}).test) == 4
    hidden = table(hub, 4, labels=[-1] * 4, feature=hub.Value("int64"))
    hub.DatasetDict({"train": table(hub, 4), "test": hidden}).save_to_disk(tmp_path / "hidden")
    with pytest.raises(ValueError, match="row 0: label -1 is none of the classes"):
        load_data({"name": "huggingface", "path": str(tmp_path / "hidden")})
    with pytest.raises(ValueError, match="subset is for sets on the hub"):
        load_data({**spec, "subset": "plain"})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses that something asks for; none answers."""
    asked: list[Any] = []

    def refuse(*address: Any, **_: Any) -> Any:
        asked.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


@slow
@pytest.mark.parametrize("kind", ["parquet", "images"])
def test_a_readme_fetches_nothing(hub: Any, tmp_path: Path, kind: str, asked: list[Any]) -> None:
    if kind == "parquet":
        table(hub, 20).to_parquet(tmp_path / "train.parquet")
    else:
        for name in ("cat", "dog"):
            (tmp_path / name).mkdir()
            for place in range(10):
                picture(place).save(tmp_path / name / f"{place}.png")
    files = "http://example.invalid/train.parquet"
    (tmp_path / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n"
    )
    data = load_data({"name": "huggingface", "path": str(tmp_path)})
    assert len(data.train) + len(data.validation) + len(data.test) == 20
    assert asked == []


@slow
def test_rows_name_no_files_elsewhere(hub: Any, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    picture(7).save(tmp_path / "secret.png")
    (tmp_path / "set").mkdir()
    for place in ("../secret.png", str(tmp_path / "secret.png")):
        rows = [{"bytes": None, "path": place}] * 10
        columns = {"image": rows, "label": ["b", "a"] * 5}
        parquet.write_table(pyarrow.table(columns), tmp_path / "set" / "all.parquet")
        for path in (tmp_path / "set", tmp_path / "set" / "all.parquet"):
            with pytest.raises(ValueError, match=r"row \d: .*secret.png is no image .*leads out"):
                load_data({"name": "huggingface", "path": str(path), "size": 8}).train.images[:1]


@slow
def test_saved_sets_name_no_files_elsewhere(hub: Any, tmp_path: Path) -> None:
    table(hub, 20).save_to_disk(tmp_path / "saved")
    state = tmp_path / "saved" / "state.json"
    content = json.loads(state.read_text())
    name = content["_data_files"][0]["filename"]
    (tmp_path / "saved" / name).rename(tmp_path / name)
    content["_data_files"][0]["filename"] = f"../{name}"
    state.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="must be a plain name"):
        load_data({"name": "huggingface", "path": str(tmp_path / "saved"), "size": 8})


def test_the_hub_is_asked_only_where_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="fetched with download: true only"):
        load_data({"name": "huggingface", "path": "ylecun/mnist"})


def test_size_is_checked() -> None:
    with pytest.raises(ValueError, match="size must be at least 1"):
        load_data({"name": "huggingface", "path": "x", "size": 0})


@slow
@pytest.mark.parametrize("name", ["metadata.jsonl", "train.parquet"])
def test_what_the_library_refuses_is_one_line(hub: Any, tmp_path: Path, name: str) -> None:
    """It raised an error of the library's own, which ended in a traceback."""
    picture(7).save(tmp_path / "a.png")
    (tmp_path / name).write_text('{"file_name": "http://h/a.png", "label": "a"}\n')
    with pytest.raises(ValueError, match=r"can't be read|is no image") as caught:
        load_data({"name": "huggingface", "path": str(tmp_path), "size": 8})
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


IMAGE = {"_type": "Image"}


@slow
@pytest.mark.parametrize("kind", [IMAGE, {"_type": "List", "feature": IMAGE}, {"_type": "Audio"}])
@pytest.mark.parametrize("place", ["http://example.invalid/a.png", "secret.png"])
def test_no_label_is_decoded(
    hub: Any, tmp_path: Path, kind: dict[str, Any], place: str, asked: list[Any]
) -> None:
    """A label that calls itself an image was opened, or fetched from the host that it names."""
    import pyarrow
    from pyarrow import parquet

    opened: list[Any] = []
    secret = tmp_path / "secret.png"
    picture(7).save(secret)
    sys.addaudithook(
        lambda event, facts: (
            opened.append(facts) if event == "open" and facts[0] == str(secret) else None
        )
    )
    cell = {"bytes": None, "path": str(secret) if place == secret.name else place}
    rows = [cell if "feature" not in kind else [cell]] * 10
    images = [{"bytes": b"x", "path": None}] * 10
    facts = {"huggingface": json.dumps({"info": {"features": {"image": IMAGE, "label": kind}}})}
    table = pyarrow.table({"image": images, "label": rows}).replace_schema_metadata(facts)
    (tmp_path / "set").mkdir()
    parquet.write_table(table, tmp_path / "set" / "train.parquet")
    with pytest.raises(ValueError, match=r"labels must be classes, .* got \['(dict|list)'\]"):
        load_data({"name": "huggingface", "path": str(tmp_path / "set")})
    assert (asked, opened) == ([], [])


@slow
def test_a_label_names_no_more_classes_than_rows(hub: Any, tmp_path: Path) -> None:
    """One label of 2**40 made a name for each number up to it."""
    table(hub, 4, labels=[0, 1, 0, 20_000], feature=hub.Value("int64")).to_parquet(
        tmp_path / "train.parquet"
    )
    with pytest.raises(ValueError, match=r"label 20000 is refused: it has 4 rows"):
        load_data({"name": "huggingface", "path": str(tmp_path)})


@slow
@pytest.mark.parametrize("features", ["x", {"label": 7}, {"label": {"_type": "Value"}}, None])
def test_odd_features_are_one_line(hub: Any, tmp_path: Path, features: Any) -> None:
    import pyarrow
    from pyarrow import parquet

    facts = "[" * 10**5 if features is None else json.dumps({"info": {"features": features}})
    table = pyarrow.table({"image": ["a"], "label": ["b"]})
    parquet.write_table(
        table.replace_schema_metadata({"huggingface": facts}), tmp_path / "train.parquet"
    )
    with pytest.raises(ValueError, match=r"can't be read \(") as caught:
        load_data({"name": "huggingface", "path": str(tmp_path)})
    assert str(tmp_path) in str(caught.value)


@slow
@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("state.json", "_data_files", [{}]),
        ("state.json", "_data_files", 5),
        ("state.json", "_split", 7),
        ("dataset_info.json", "splits", {"a": 1}),
        ("dataset_info.json", "features", {"image": IMAGE, "label": IMAGE}),
    ],
)
def test_odd_saved_sets_are_one_line(
    hub: Any, tmp_path: Path, name: str, key: str, value: Any
) -> None:
    table(hub, 4).save_to_disk(tmp_path)
    content = json.loads((tmp_path / name).read_text())
    (tmp_path / name).write_text(json.dumps({**content, key: value}))
    with pytest.raises(ValueError, match=r"can't be read \(|unreadable \(") as caught:
        load_data({"name": "huggingface", "path": str(tmp_path)})
    assert str(tmp_path) in str(caught.value)


@slow
def test_a_saved_format_is_not_used(hub: Any, tmp_path: Path) -> None:
    table(hub, 20).with_format("torch").save_to_disk(tmp_path)
    assert load_data({"name": "huggingface", "path": str(tmp_path)}).classes == ("cat", "dog")
