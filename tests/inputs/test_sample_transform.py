"""The per-sample form: the same as a batch of one, inside torchvision pipelines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from sfumato.inputs import Mollify, MollifySample


class _Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, transforms: v2.Transform) -> None:
        self.transforms = transforms

    def __len__(self) -> int:
        return 6

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = tv_tensors.Image(torch.full((3, 8, 8), 40 * position, dtype=torch.uint8))
        return self.transforms(image, position)


@pytest.mark.parametrize("seed", range(6))
def test_equals_a_batch_of_one(seed: int) -> None:
    image, mollify = torch.randn(3, 8, 8), Mollify(10)
    sample = MollifySample(mollify, generator=torch.Generator().manual_seed(seed))
    out, label = sample(image, 4)
    batch, labels = mollify(
        image[None], torch.tensor([4]), generator=torch.Generator().manual_seed(seed)
    )
    assert out.equal(batch[0])
    assert label.equal(labels[0])


def test_in_a_pipeline_of_a_data_loader() -> None:
    transforms = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5,) * 3, (0.25,) * 3),
            MollifySample(Mollify(10)),
        ]
    )
    image, label = _Pairs(transforms)[3]
    assert isinstance(image, tv_tensors.Image)
    assert int(label.argmax()) == 3
    images, labels = next(iter(DataLoader(_Pairs(transforms), batch_size=6)))
    assert images.shape == (6, 3, 8, 8)
    torch.testing.assert_close(labels.sum(1), torch.ones(6))


def test_soft_labels_pass() -> None:
    soft = torch.tensor([0.25, 0.75])
    _, label = MollifySample(Mollify(2, modes=(1, 0, 0)))(torch.zeros(1, 4, 4), soft)
    assert label.equal(soft)


def test_bad_input() -> None:
    transform = MollifySample(Mollify(10))
    with pytest.raises(ValueError, match=r"one tensor \(C, H, W\), got \(2, 3, 4, 4\).*Mollify"):
        transform(torch.zeros(2, 3, 4, 4), 1)
    with pytest.raises(ValueError, match=r"got list. Put v2.ToImage\(\) before"):
        transform([1, 2], 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="images must be floating point"):
        transform(torch.zeros(3, 4, 4, dtype=torch.uint8), 1)
    with pytest.raises(ValueError, match=r"class indices in \[0, 10\), got 12"):
        transform(torch.zeros(3, 4, 4), 12)


class _Noised(Dataset[Tensor]):
    """The same image again and again, through a transform."""

    def __init__(self, generator: torch.Generator) -> None:
        self.transform = MollifySample(Mollify(10, modes=(0.0, 1.0, 0.0)), generator=generator)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(torch.zeros(1, 4, 4), 3)[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_each_worker_and_epoch_has_its_own_noise(persistent: bool) -> None:
    def epochs(seed: int, loader_seed: int) -> Tensor:
        data = _Noised(torch.Generator().manual_seed(seed))
        loader = DataLoader(
            data,
            num_workers=2,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(loader_seed),
        )
        return torch.cat([batch for _ in range(2) for batch in loader]).flatten(1)  # (8, 16)

    found = epochs(0, 0)
    assert len(found.unique(dim=0)) == 8
    assert torch.equal(epochs(0, 0), found)
    assert not torch.equal(epochs(1, 0), found)
    assert not torch.equal(epochs(0, 1), found)
