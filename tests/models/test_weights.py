"""Weights from files: what fits, what is left out, and what every mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sfumato.features import add_dropout, add_smoothing
from sfumato.models import fit_weights, read_weights, resnet, torchvision_segmentation, unet
from sfumato.models.weights import final_layers


def _tiny(classes: int = 10, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return resnet(8, num_classes=classes, width=4)


@pytest.mark.parametrize("form", ["safetensors", "pt", "nested", "wrapped"])
def test_files_of_all_forms_load(form: str, tmp_path: Path) -> None:
    source, network = _tiny(seed=1), _tiny(seed=2)
    file = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    state = source.state_dict()
    if form == "safetensors":
        save_file(state, file)
    elif form == "pt":
        torch.save(state, file)
    elif form == "nested":
        torch.save({"epoch": 3, "state_dict": state}, file)
    else:
        torch.save({f"module.{key}": value for key, value in state.items()}, file)
    assert fit_weights(network, read_weights(file), str(file)) == []
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_a_final_layer_for_other_classes_is_left_out() -> None:
    source, network = _tiny(1000, seed=1), _tiny(10, seed=2)
    fresh = network.get_parameter("head.linear.weight").clone()
    left_out = fit_weights(network, source.state_dict(), "file")
    assert left_out == ["head.linear.bias", "head.linear.weight"]
    assert torch.equal(network.get_parameter("head.linear.weight"), fresh)
    assert torch.equal(
        network.get_parameter("stem.0.weight"), source.get_parameter("stem.0.weight")
    )


def test_weights_load_into_a_network_with_smoothing_and_dropout() -> None:
    network = add_smoothing(add_dropout(_tiny(seed=2), 0.1), torch.zeros(1, 3, 16, 16))
    assert fit_weights(network, _tiny(seed=1).state_dict(), "file") == []


def test_two_final_layers_that_add_up_are_both_left_out() -> None:
    network = torchvision_segmentation("lraspp_mobilenet_v3_large", num_classes=11)
    assert final_layers(network) == [
        "network.classifier.low_classifier",
        "network.classifier.high_classifier",
    ]
    for classes in (5, 4):  # as many as the decoder has channels
        assert final_layers(unet(num_classes=classes, width=4)) == ["head"]


def test_weights_of_another_network_are_listed() -> None:
    with pytest.raises(ValueError, match="weights file are not of this StagedNetwork") as caught:
        fit_weights(_tiny(), unet(num_classes=10, width=4).state_dict(), "file")
    message = str(caught.value)
    assert "missing in the file: stem.0.weight" in message
    assert "not in the network: encoder.0.conv1.weight" in message
    assert "more" in message
    assert "Give the model the name and the options" in message


def test_another_width_is_no_other_head() -> None:
    """The head of a wider network has other inputs: nothing is left out silently."""
    wider = resnet(8, num_classes=7, width=8).state_dict()
    with pytest.raises(ValueError, match=r"stem.0.weight \(8, 3, 3, 3\) instead of \(4, 3, 3, 3\)"):
        fit_weights(_tiny(), wider, "file")
    assert "head.linear.bias" in wider


def test_files_that_are_no_weights_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ending in .safetensors, .pt"):
        read_weights(tmp_path / "w.npz")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_weights(tmp_path / "w.pt")
    torch.save(_tiny(), tmp_path / "module.pt")
    with pytest.raises(ValueError, match=r"hold more than tensors.*save them with torch.save\("):
        read_weights(tmp_path / "module.pt")
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"must hold a mapping of names to tensors.*holds list"):
        read_weights(tmp_path / "list.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"abc")
    with pytest.raises(ValueError, match="no whole safetensors file"):
        read_weights(tmp_path / "cut.safetensors")


def test_a_network_without_layers_has_no_final_one() -> None:
    with pytest.raises(ValueError, match="has no linear or convolutional layer"):
        final_layers(nn.ReLU())
