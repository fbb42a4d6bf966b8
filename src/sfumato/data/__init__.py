"""Where samples come from: scenes (built in), arrays, folders, torchvision sets."""

from sfumato.data.dataset import ArrayDataset, DataSplits, Sample

__all__ = ["ArrayDataset", "DataSplits", "Sample"]
