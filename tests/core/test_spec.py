"""Specs: names and parameters are checked against the callables themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from sfumato._core.spec import Resolved, parameters, resolve


def disc(
    radius: float = 1,
    *,
    sides: int = 5,
    colour: Literal["red", "blue"] = "red",
    centre: tuple[float, float] = (0.0, 0.0),
    corners: list[tuple[int, int]] | None = None,
    file: str | Path = "a.png",
    filled: bool = True,
    amount: float | int = 0.1,
) -> None:
    raise AssertionError("resolve must not call anything")


def labelled(classes: int, *, root: Path, note=None) -> None: ...


@dataclass(frozen=True)
class Square:
    side: float = 2.0


class Layer(nn.Module):
    def __init__(self, width: int, weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.width = width


# A busy machine must not fail a law.
RELAXED = settings(max_examples=50)
TABLE: Mapping[str, Any] = {
    "disc": disc,
    "labelled": labelled,
    "square": Square,
    "layer": Layer,
    "big_disc": partial(disc, 10.0),
}


def shape(spec: Any, **options: Any) -> Resolved:
    return resolve(spec, TABLE, "shape", **options)


class TestValues:
    def test_name_alone_gives_all_defaults(self) -> None:
        found = shape("disc")
        assert found.build is disc
        assert found.params == {
            "radius": 1.0,
            "sides": 5,
            "colour": "red",
            "centre": (0.0, 0.0),
            "corners": None,
            "file": "a.png",
            "filled": True,
            "amount": 0.1,
        }

    def test_written_default_and_left_out_are_one_configuration(self) -> None:
        assert repr(shape({"name": "disc", "radius": 1}).config) == repr(shape("disc").config)

    def test_integer_becomes_float_and_list_becomes_tuple(self) -> None:
        params = shape(
            {"name": "disc", "radius": 3, "centre": [1, 2.5], "corners": [[1, 2], [3, 4]]}
        ).params
        assert params["radius"] == 3.0
        assert isinstance(params["radius"], float)
        assert params["centre"] == (1.0, 2.5)
        assert params["corners"] == [(1, 2), (3, 4)]

    def test_share_or_count_keeps_its_kind(self) -> None:
        assert isinstance(shape({"name": "disc", "amount": 3}).params["amount"], int)
        assert isinstance(shape({"name": "disc", "amount": 0.3}).params["amount"], float)

    def test_string_and_path_for_a_path(self) -> None:
        for value in ("x/y", Path("x/y")):
            found = shape({"name": "labelled", "classes": 2, "root": value})
            assert found.params["root"] == Path("x/y")
            assert found.config["root"] == "x/y"

    def test_config_is_plain(self) -> None:
        config = shape({"name": "disc", "file": Path("b.png"), "corners": [[1, 2]]}).config
        assert config["name"] == "disc"
        assert config["file"] == "b.png"
        assert config["centre"] == [0.0, 0.0]
        assert config["corners"] == [[1, 2]]

    def test_parameters_added_later_leave_configurations_as_they_are(self) -> None:
        def before(*, size: int = 3, crop: int | None = 4) -> None: ...
        def after(*, size: int = 3, crop: int | None = 4, limit: int | None = None) -> None: ...

        for spec in ("thing", {"name": "thing", "size": 5, "crop": None}):
            old, new = (resolve(spec, {"thing": it}, "thing").config for it in (before, after))
            assert old == new
            assert "crop" in new
        limited = resolve({"name": "thing", "limit": 2}, {"thing": after}, "thing")
        assert limited.config == {"name": "thing", "size": 3, "crop": 4, "limit": 2}

    def test_config_refuses_what_has_no_plain_form(self) -> None:
        found = shape({"name": "labelled", "classes": 1, "root": "x", "note": object()})
        with pytest.raises(TypeError, match="can't be written to a configuration"):
            _ = found.config

    def test_mapping_parameter_is_plain_too(self) -> None:
        found = shape({"name": "labelled", "classes": 1, "root": "x", "note": {"at": Path("y")}})
        assert found.config["note"] == {"at": "y"}

    def test_classes_dataclasses_and_partials(self) -> None:
        assert shape({"name": "square", "side": 3}).build(side=3.0) == Square(3.0)
        layer = shape("layer", supplied=("width",))
        assert layer.build(width=4, **layer.params).width == 4
        big = shape({"name": "big_disc", "sides": 7})
        assert "radius" not in big.params
        assert big.params["sides"] == 7

    def test_parameters_lists_what_a_user_may_set(self) -> None:
        found = parameters(labelled, supplied=("classes",))
        assert list(found) == ["root", "note"]
        assert found["root"].annotation is Path

    @RELAXED
    @given(st.floats(allow_nan=False), st.integers(-(2**40), 2**40))
    def test_numbers_pass_unchanged(self, radius: float, sides: int) -> None:
        params = shape({"name": "disc", "radius": radius, "sides": sides}).params
        assert params["radius"] == radius
        assert params["sides"] == sides

    def test_not_a_number_passes_as_given(self) -> None:
        assert math.isnan(shape({"name": "disc", "radius": math.nan}).params["radius"])

    def test_the_spec_is_not_changed(self) -> None:
        spec = {"name": "disc", "radius": 2}
        shape(spec)
        assert spec == {"name": "disc", "radius": 2}


class TestMessages:
    def test_unknown_name_suggests_and_lists(self) -> None:
        with pytest.raises(ValueError, match=r"unknown shape 'disk' \(did you mean 'disc'\?\)"):
            shape("disk")
        with pytest.raises(ValueError, match=r"Choose from \['big_disc', 'disc', 'labelled'"):
            shape("zzz")

    def test_unknown_key_suggests_and_lists(self) -> None:
        message = r"shape 'disc' has no parameter 'side' \(did you mean 'sides'\?\). It takes \['am"
        with pytest.raises(ValueError, match=message):
            shape({"name": "disc", "side": 4})
        with pytest.raises(ValueError, match=r"'from_logits' \(every component takes logits"):
            shape({"name": "disc", "from_logits": True})

    def test_non_string_key(self) -> None:
        with pytest.raises(ValueError, match="has no parameter 3"):
            shape({"name": "disc", 3: 4})

    def test_supplied_key_is_not_for_the_user(self) -> None:
        with pytest.raises(ValueError, match="classes of shape 'labelled' is set from the data"):
            shape({"name": "labelled", "classes": 3, "root": "x"}, supplied=("classes",))

    def test_missing_parameter(self) -> None:
        with pytest.raises(ValueError, match=r"shape 'labelled' needs 'root' \(Path\)"):
            shape({"name": "labelled", "classes": 3})

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("sides", "5", "sides of shape 'disc' must be int, got str '5'"),
            ("sides", 5.0, "must be int, got float 5.0"),
            ("sides", True, "must be int, got bool True"),
            ("sides", None, "must be int, got NoneType None"),
            ("radius", "5", "must be float, got str '5'"),
            ("radius", False, "must be float, got bool False"),
            ("filled", 1, "must be bool, got int 1"),
            ("filled", "yes", "must be bool, got str 'yes'"),
            ("centre", [1, 2, 3], r"must be tuple\[float, float\], got list \[1, 2, 3\]"),
            ("amount", "0.1", r"must be float \| int, got str"),
            ("file", 3, r"must be str \| Path, got int 3"),
            ("sides", object, "must be int, got type"),
        ],
    )
    def test_wrong_type(self, key: str, value: Any, expected: str) -> None:
        with pytest.raises(TypeError, match=expected):
            shape({"name": "disc", key: value})

    def test_wrong_choice(self) -> None:
        message = "colour of shape 'disc' must be one of 'red', 'blue', got str 'green'"
        with pytest.raises(ValueError, match=message):
            shape({"name": "disc", "colour": "green"})

    @pytest.mark.parametrize("spec", [None, 3, ["disc"]])
    def test_neither_name_nor_mapping(self, spec: Any) -> None:
        with pytest.raises(TypeError, match="shape must be a name or a mapping with 'name'"):
            shape(spec)

    @pytest.mark.parametrize("spec", [{}, {"radius": 2}, {"name": 3}, {"name": None}])
    def test_mapping_without_a_name(self, spec: Any) -> None:
        with pytest.raises(ValueError, match="shape needs a 'name' that is a string"):
            shape(spec)
