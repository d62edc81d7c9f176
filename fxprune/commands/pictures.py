"""A folder of pictures as samples: which pixels a model sees of a picture, and how they are scaled."""

from __future__ import annotations

import argparse
import importlib
import os
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.errors import DataError, OptionError, named
from fxprune.files import as_path
from fxprune.report.text import plural
from fxprune.torch_private import AnyConv

EXTENSIONS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MODES = {1: "L", 3: "RGB"}  # of Pillow, by channels
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
GREY_MEAN, GREY_STD = (0.449,), (0.226,)  # their means
SIZE, SHOWN = 224, 0.875  # as most nets for ImageNet are measured: of 256 pixels
Progress = Callable[[int], None]  # told how many pictures have been read


@dataclass(frozen=True)
class Preprocessing:
    """The shorter side is brought to ``resized`` pixels, the middle ``size`` (height, width) is cut out, and values
    from 0 to 1 are scaled by ``mean`` and ``std``."""

    size: tuple[int, int]
    resized: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    source: str  # what says so

    def __str__(self) -> str:
        """
        >>> print(default(3))
        shorter side to 256, middle 224x224, mean 0.485 0.456 0.406, std 0.229 0.224 0.225
        """
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        height, width = self.size
        return f"shorter side to {self.resized}, middle {height}x{width}, mean {mean}, std {std}"

    def __call__(self, picture: Any) -> torch.Tensor:
        """Of a picture of Pillow."""
        how = getattr(importlib.import_module("PIL.Image").Resampling, self.interpolation.upper())
        picture = picture.convert(MODES[len(self.mean)])
        factor, (height, width) = self.resized / min(picture.size), self.size
        sides = [max(round(side * factor), least) for side, least in zip(picture.size, (width, height), strict=True)]
        if list(picture.size) != sides:
            picture = picture.resize(sides, how)
        left, top = (sides[0] - width) // 2, (sides[1] - height) // 2
        pixels = np.asarray(picture.crop((left, top, left + width, top + height)), dtype=np.float32) / 255
        x = torch.from_numpy(pixels.reshape(height, width, -1)).permute(2, 0, 1)
        return (x - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]


def default(channels: int) -> Preprocessing:
    mean, std = (MEAN, STD) if channels == 3 else (GREY_MEAN, GREY_STD)
    return Preprocessing((SIZE, SIZE), round(SIZE / SHOWN), mean, std, "bilinear", "the default, ImageNet's")


# ------------------------------------------------------------------ what the model brings


def preprocessing(
    model: nn.Module, source: Any, arguments: Mapping[str, Any], options: argparse.Namespace
) -> Preprocessing:
    """What the options say; else what the model brings or the weights in the ``arguments`` of what makes it, its
    ``source``; else the default."""
    brought = _of_timm(model) or _of_torchvision(source, arguments.get("weights")) or default(_channels(model))
    given = [name for name in ("size", "mean", "std") if getattr(options, name) is not None]
    if not given:
        return brought
    size, resized = brought.size, brought.resized
    if options.size is not None:
        size, resized = options.size, min(options.size)  # nothing says that more than that was seen in training
    mean, std = (_values(name, getattr(options, name), getattr(brought, name)) for name in ("mean", "std"))
    said = " ".join(f"--{name}" for name in given)
    source = said if len(given) == 3 else f"{said}; the rest: {brought.source}"
    return Preprocessing(size, resized, mean, std, brought.interpolation, source)


def _values(name: str, given: Sequence[float] | None, brought: tuple[float, ...]) -> tuple[float, ...]:
    """One per channel; a single one is that of all channels."""
    if given is None:
        return brought
    values = tuple(given) * (len(brought) if len(given) == 1 else 1)
    if len(values) != len(brought):
        raise OptionError(
            f"--{name} has {plural(len(values), 'number')}, and the model reads {plural(len(brought), 'channel')}",
            fix=f"write --{name} {' '.join(f'{value:g}' for value in brought)}",
        )
    if name == "std" and min(values) <= 0:
        raise OptionError(f"--std {min(values):g} is not above 0", fix="write --std 0.229 0.224 0.225")
    return values


def _channels(model: nn.Module) -> int:
    """As many as the first convolution reads."""
    first = next((module for module in model.modules() if isinstance(module, AnyConv)), None)
    channels = 3 if first is None else int(first.in_channels)
    if channels not in MODES:
        raise OptionError(
            f"the model's first convolution reads {channels} channels, and pictures have one or three",
            fix="write --data file.py:samples instead of --pictures: a function of yours that returns the samples",
        )
    return channels


def _of_timm(model: nn.Module) -> Preprocessing | None:
    for name in ("pretrained_cfg", "default_cfg"):
        held = getattr(model, name, None)
        config = held if isinstance(held, Mapping) else getattr(held, "__dict__", {})
        if not {"input_size", "mean", "std"} <= set(config):
            continue
        _, height, width = config["input_size"]
        shown = config.get("crop_pct") or SHOWN
        how = config.get("interpolation") or "bicubic"
        return Preprocessing(
            (height, width), round(min(height, width) / shown), tuple(config["mean"]), tuple(config["std"]),
            _known(how), f"the model's {name}",
        )  # fmt: skip
    return None


def _of_torchvision(source: Any, asked: Any) -> Preprocessing | None:
    """Of the weights that were asked for, or the best ones that there are."""
    if not str(getattr(source, "__module__", "")).startswith("torchvision.models"):
        return None
    try:
        choices = importlib.import_module("torchvision.models").get_model_weights(source)
        weights = choices[str(asked).rpartition(".")[2]] if asked else choices.DEFAULT
        shown = weights.transforms()
        crop = getattr(shown, "crop_size", shown.resize_size)[0]
        return Preprocessing(
            (crop, crop), shown.resize_size[0], tuple(shown.mean), tuple(shown.std),
            _known(shown.interpolation.value), f"torchvision's {weights}",
        )  # fmt: skip
    except (ValueError, KeyError, AttributeError, TypeError):  # a model without weights, or with transforms of its own
        return None


def _known(interpolation: str) -> str:
    return interpolation if interpolation in ("nearest", "bilinear", "bicubic", "lanczos") else "bilinear"


# ------------------------------------------------------------------ reading


def picture_files(folder: Path) -> list[Path]:
    """All below the folder, in order."""
    as_path(folder, "--pictures")
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise DataError(f"the folder of pictures {folder} {what}", fix="write --pictures with a folder")
    files = [
        Path(place) / name for place, _, names in os.walk(folder, followlinks=True) for name in names
        if Path(name).suffix.lower() in EXTENSIONS and not name.startswith(".")
    ]  # fmt: skip
    if not files:
        raise DataError(
            f"there are no pictures in {folder} (looked for {' '.join(sorted(EXTENSIONS))}, in folders inside, too)",
            fix="write --pictures with a folder of pictures, or --data file.py:samples",
        )
    return sorted(files)


def read_pictures(
    files: Sequence[Path], most: int, seed: int, prepared: Preprocessing, progress: Progress
) -> tuple[torch.Tensor, dict[str, str]]:
    """At most so many, drawn from all of them; and which could not be read, and why."""
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise DataError("reading pictures needs Pillow, which is missing", fix="pip install pillow") from error
    drawn = random.Random(seed).sample(files, len(files))
    samples, skipped = torch.empty(min(most, len(files)), len(prepared.mean), *prepared.size), dict[str, str]()
    count = 0
    for file in drawn:
        if count == len(samples):
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of metadata and transparency
                with pillow.open(file) as picture:
                    samples[count] = prepared(picture)
        except Exception as error:  # a damaged file can raise anything
            skipped[str(file)] = _why(error)
            continue
        count += 1
        progress(count)
    if not count:
        first, why = next(iter(skipped.items()))
        raise DataError(
            f"none of {plural(len(files), 'picture')} can be read: {first}: {why}",
            fix="write --pictures with a folder of pictures that open in other programs",
        )
    return samples[:count], skipped


def _why(error: Exception) -> str:
    return "it is no picture, or a damaged one" if type(error).__name__ == "UnidentifiedImageError" else named(error)
