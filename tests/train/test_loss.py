from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fxprune
from fxprune.errors import DataError, OptionError


def test_formula() -> None:
    """Written out for every sample."""
    student, teacher = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1])
    expected = 0.0
    for s, t, label in zip(student, teacher, labels, strict=True):
        hard = -torch.log(s.exp()[label] / s.exp().sum())
        soft_s, soft_t = (s / 4).exp() / (s / 4).exp().sum(), (t / 4).exp() / (t / 4).exp().sum()
        expected += float(0.1 * hard - 0.9 * 16 * (soft_t * soft_s.log()).sum()) / 3
    torch.testing.assert_close(
        fxprune.distillation_loss(student, teacher, labels), torch.tensor(expected, dtype=torch.float64)
    )


def test_maps_are_as_many_samples() -> None:
    student, teacher = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    labels = torch.randint(0, 5, (2, 3, 4))
    labels[0, 0, :2] = 255

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.movedim(1, -1).reshape(-1, 5)

    counted = labels.reshape(-1) != 255
    whole = fxprune.distillation_loss(student, teacher, labels, ignore_index=255)
    same = fxprune.distillation_loss(flat(student)[counted], flat(teacher)[counted], labels.reshape(-1)[counted])
    torch.testing.assert_close(whole, same)


def test_a_batch_without_labels_is_worth_nothing() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    loss = fxprune.distillation_loss(logits, logits, torch.full((2,), -100))
    loss.backward()
    assert float(loss.detach()) == 0 and logits.grad is not None and not logits.grad.any()


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    fxprune.distillation_loss(student, teacher, torch.tensor([0, 1])).backward()
    assert student.grad is not None and teacher.grad is None


def test_shapes_that_do_not_fit_are_named() -> None:
    labels = torch.zeros(2).long()
    with pytest.raises(OptionError, match="student's output is 2x10, the teacher's 2x100"):
        fxprune.distillation_loss(torch.zeros(2, 10), torch.zeros(2, 100), labels)
    with pytest.raises(OptionError, match=r"labels of 2 \(int64\) do not fit an output of 2x3x4x4"):
        fxprune.distillation_loss(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4), labels)
    with pytest.raises(OptionError, match="student's output is of type dict"):
        fxprune.distillation_loss({"logits": torch.zeros(2, 3)}, torch.zeros(2, 3), labels)
    with pytest.raises(OptionError, match="alpha=2"):
        fxprune.distillation_loss(torch.zeros(2, 3), torch.zeros(2, 3), labels, alpha=2)
    with pytest.raises(OptionError, match="temperature=0"):
        fxprune.distillation_loss(torch.zeros(2, 3), torch.zeros(2, 3), labels, temperature=0)


# ------------------------------------------------------------ cached


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def test_cached_logits_are_those_of_the_teacher(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(10, 1, 4, 4), torch.arange(10) % 3)
    teacher = net().eval()
    cached = fxprune.CachedTeacher(teacher, data, tmp_path / "logits.pt", batch_size=4)
    for inputs, (target, index) in DataLoader(cached.dataset, 5, shuffle=True):
        torch.testing.assert_close(cached(index), teacher(inputs))
        assert torch.equal(target, index % 3)


def test_the_file_is_used_again_unless_the_teacher_changed(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(6, 1, 4, 4), torch.zeros(6).long())
    teacher, file = net(), tmp_path / "deep" / "logits.pt"
    fxprune.CachedTeacher(teacher, data, file)
    written = file.stat().st_mtime_ns
    fxprune.CachedTeacher(teacher, data, file)
    assert file.stat().st_mtime_ns == written
    with torch.no_grad():
        teacher[4].bias.add_(1)  # type: ignore[index, union-attr, operator]
    again = fxprune.CachedTeacher(teacher, data, file)
    torch.testing.assert_close(again(torch.arange(6)), teacher.eval()(data.tensors[0]))


def test_other_samples_or_another_pair_are_asked_again(tmp_path: Path) -> None:
    data, teacher, file = TensorDataset(torch.randn(6, 1, 4, 4), torch.zeros(6).long()), net(), tmp_path / "logits.pt"
    fxprune.CachedTeacher(teacher, data, file)
    other = TensorDataset(data.tensors[0].flip(0), data.tensors[1])
    asked = fxprune.CachedTeacher(teacher, other, file)
    torch.testing.assert_close(asked(torch.arange(6)), teacher.eval()(other.tensors[0]))
    assert not fxprune.CachedTeacher(teacher, other, file, pair=lambda out: out * 0).logits.any()


def test_caching_draws_nothing(tmp_path: Path) -> None:
    teacher, data = net(), TensorDataset(torch.randn(6, 1, 4, 4), torch.zeros(6).long())
    before = torch.random.get_rng_state()
    for _ in range(2):  # computed, and looked at again
        fxprune.CachedTeacher(teacher, data, tmp_path / "logits.pt")
        assert torch.equal(torch.random.get_rng_state(), before)
    assert [path.name for path in tmp_path.iterdir()] == ["logits.pt"]


def test_pruning_by_cached_logits(tmp_path: Path) -> None:
    """The same as with the teacher itself where nothing is augmented."""
    data = TensorDataset(torch.randn(12, 1, 4, 4), torch.arange(12) % 3)
    teacher = net()
    cached = fxprune.CachedTeacher(teacher, data, tmp_path / "logits.pt", batch_size=4)
    options = {"budget": 1 / 2, "epochs": (2, 1, 0), "progress": False}
    one = fxprune.prune(teacher, DataLoader(cached.dataset, 4), None, teacher=cached, **options)  # type: ignore[arg-type]
    other = fxprune.prune(teacher, DataLoader(data, 4), None, teacher=teacher, **options)  # type: ignore[arg-type]
    for name, value in other.slim.state_dict().items():
        torch.testing.assert_close(one.slim.state_dict()[name], value)
    with pytest.raises(DataError, match=r"do not say which samples they hold"):
        fxprune.prune(teacher, DataLoader(data, 4), None, teacher=cached, **options)  # type: ignore[arg-type]


def test_an_augmented_dataset_is_refused(tmp_path: Path) -> None:
    class Noisy(Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.randn(1, 4, 4), 0

    class NoisyArrays(Noisy):
        def __getitem__(self, index: int) -> Any:
            return np.random.randn(1, 4, 4).astype("float32"), 0

    for noisy in (Noisy(), NoisyArrays()):
        with pytest.raises(DataError, match="the dataset augments"):
            fxprune.CachedTeacher(net(), noisy, tmp_path / "logits.pt")
