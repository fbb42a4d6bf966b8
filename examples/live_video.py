"""Live video: one pass a frame, smoothed over the last frames, drawn with class and confidence.

Run: python examples/live_video.py --demo
     python examples/live_video.py --frames folder_or_video --weights model.safetensors --classes 10
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torchvision.transforms.v2.functional import pil_to_tensor, resize, to_pil_image
from torchvision.utils import draw_segmentation_masks

from sfumato.data import scenes
from sfumato.models import resnet
from sfumato.predictions import TemporalSmoother

IMAGES = {".png", ".jpg", ".jpeg", ".webp"}
COLOURS = [
    (230, 60, 60), (60, 160, 230), (80, 190, 80), (240, 180, 40), (160, 90, 210),
    (240, 120, 180), (60, 200, 190), (150, 110, 70), (200, 210, 60), (130, 130, 230),
]  # fmt: skip


def read_frames(source: Path) -> Iterator[Tensor]:
    """Frames (3, H, W) uint8 of a folder of images, in the order of their names, or of a video."""
    if source.is_dir():
        paths = sorted(path for path in source.iterdir() if path.suffix.lower() in IMAGES)
        if not paths:
            raise SystemExit(f"--frames: no image ({', '.join(sorted(IMAGES))}) in {source}")
        for path in paths:
            with Image.open(path) as image:
                yield pil_to_tensor(image.convert("RGB"))
        return
    if not source.is_file():
        raise SystemExit(f"--frames: {source} is neither a folder nor a file")
    try:
        import av
    except ImportError:
        raise SystemExit(
            "--frames: to read a video file install PyAV (pip install av), or extract its frames: "
            f"ffmpeg -i {source} frames/%05d.png, then pass --frames frames"
        ) from None
    with av.open(str(source)) as container:
        for frame in container.decode(video=0):
            yield torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)


def build(classes: int, weights: Path | None, segment: bool) -> nn.Module:
    """A small ResNet; as a segmenter its head acts on each point of the last feature map."""
    torch.manual_seed(0)
    model = resnet(8, num_classes=classes, width=16)
    if weights is not None:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(weights))
    if segment:
        linear = model.head.linear
        head = nn.Conv2d(linear.in_features, linear.out_features, 1)
        head.weight.data, head.bias.data = linear.weight.data[..., None, None], linear.bias.data
        model.head = head
    return model.eval()


def overlay(frame: Tensor, probs: Tensor, names: list[str]) -> tuple[Tensor, str]:
    """The frame with its classes in colour, stronger where they are surer, and a line of text."""
    confidence, winner = probs.max(0)
    if probs.ndim == 1:
        colour = torch.tensor(COLOURS[int(winner) % len(COLOURS)], dtype=torch.uint8)
        drawn = frame.clone()
        filled = round(float(confidence) * frame.shape[2])
        drawn[:, -max(2, frame.shape[1] // 16) :, :filled] = colour[:, None, None]
        return drawn, f"{names[int(winner)]} {float(confidence):.2f}"
    size = list(frame.shape[1:])
    winner = resize(winner[None], size, interpolation=0)[0]
    masks = torch.stack([winner == c for c in range(len(names))])
    colours = [COLOURS[c % len(COLOURS)] for c in range(len(names))]
    drawn = draw_segmentation_masks(frame, masks, alpha=0.5, colors=colours)
    strength = resize(confidence[None], size, antialias=True).clamp(0, 1)
    mixed = (strength * drawn + (1 - strength) * frame).round().to(torch.uint8)
    most = int(winner.flatten().bincount().argmax())
    return mixed, f"mostly {names[most]}, mean confidence {float(confidence.mean()):.2f}"


def write(drawn: Tensor, text: str, path: Path) -> None:
    """The picture, enlarged where it is too small to read on, with its text in the corner."""
    factor = max(1, round(320 / drawn.shape[2]))
    image = to_pil_image(drawn)
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    pen.rectangle(pen.textbbox((6, 6), text), fill="black")
    pen.text((6, 6), text, fill="white")
    image.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--frames", type=Path, help="folder of images, or a video file")
    source.add_argument(
        "--demo", action="store_true", help="frames rendered by sfumato.data.scenes"
    )
    parser.add_argument("--weights", type=Path, help="safetensors of resnet(8, width=16)")
    parser.add_argument("--classes", type=int, default=len(scenes.CLASSES))
    parser.add_argument(
        "--segment", action="store_true", help="a class for each place of the image"
    )
    parser.add_argument("--size", type=int, default=64, help="side of the network's input")
    parser.add_argument("--length", type=int, default=5, help="past frames that count")
    parser.add_argument("--decay", type=float, default=0.8)
    parser.add_argument("--cut", type=float, default=0.15, help="frame difference that starts anew")
    parser.add_argument("--limit", type=int, help="stop after so many frames")
    parser.add_argument("--output", type=Path, default=Path("live_video"))
    options = parser.parse_args()

    known = options.demo and options.classes == len(scenes.CLASSES)
    names = list(scenes.CLASSES) if known else [f"class {c}" for c in range(options.classes)]
    model = build(options.classes, options.weights, options.segment)
    smoother = TemporalSmoother(options.length, options.decay, cut_threshold=options.cut)
    frames = scenes.stream(options.limit or 30).frames[0] if options.demo else None
    options.output.mkdir(parents=True, exist_ok=True)
    if options.weights is None:
        print("no --weights: the network is untrained, its classes mean nothing")
    for number, frame in enumerate(read_frames(options.frames) if frames is None else frames):
        if number == options.limit:
            break
        small = resize(frame, [options.size, options.size], antialias=True)[None] / 255
        with torch.inference_mode():
            probs = model((small - 0.5) / 0.25).softmax(1)
            smoothed = smoother(probs, small)
        drawn, text = overlay(frame, smoothed[0], names)
        write(drawn, text, options.output / f"{number:05d}.png")
        print(f"frame {number}: {text} (this frame alone {float(probs.amax(1).mean()):.2f})")


if __name__ == "__main__":
    main()
