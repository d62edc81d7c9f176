"""The callback in a real Trainer: pruned, swapped, fine-tuned, on budget, and resumed from Lightning's checkpoints."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="lightning is not installed")
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision

import fxprune
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped
from fxprune.integrations.lightning import MASKS, FxPruneCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of much: few workers, small data, no logger
EXAMPLE = torch.zeros(2, 1, 8, 8)


class Lit(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2),
        )  # fmt: skip
        self.example_input_array = EXAMPLE
        self.made: list[int] = []  # parameters of each optimizer
        self.seen: list[tuple[int, str, float | None]] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        x, y = batch
        self.seen.append((self.current_epoch, type(self.net).__name__, getattr(self.net, "progress", None)))
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, number: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        self.made.append(sum(p.numel() for p in self.parameters()))
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def data() -> DataLoader[Any]:
    torch.manual_seed(1)
    labels = torch.arange(64) % 2
    pictures = torch.randn(64, 1, 8, 8) + labels.reshape(-1, 1, 1, 1)
    return DataLoader(TensorDataset(pictures, labels), 16)


def trainer(epochs: int, *callbacks: Any, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"enable_checkpointing": False, **options}
    return Trainer(max_epochs=epochs, callbacks=list(callbacks), **quiet, **options)


def kept(model: Lit) -> int:
    """Channels of the convolutions."""
    return sum(part.out_channels for part in model.net.modules() if isinstance(part, nn.Conv2d))


def check(model: Lit, callback: FxPruneCallback, budget: float) -> None:
    assert callback.slim is model.net and not isinstance(model.net, Wrapped)
    report: Any = callback.slim.report
    assert report.after["volume"] <= report.before["volume"] * budget and report.error < 1e-9


class Keep(FxPruneCallback):
    """Keeps the wrapped net as training left it, and how strongly the budget entered each backward pass."""

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if isinstance(pl_module.net, Wrapped):
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            self.asked = [*getattr(self, "asked", []), float(pl_module.net.pressure.pushed)]
            self.scales = [*getattr(self, "scales", []), 1.0 if scaler is None else scaler.get_scale()]

    def _swap(self, pl_module: Any) -> None:
        self.wrapped = copy.deepcopy(pl_module.net)
        super()._swap(pl_module)


def test_prunes_swaps_and_fine_tunes() -> None:
    model, callback = Lit(), FxPruneCallback(1 / 2, 4)
    original = model.net
    first = original[0].weight.detach().clone()
    fit = trainer(6, callback)
    fit.fit(model, data(), data())
    check(model, callback, 1 / 2)
    assert kept(model) < 32
    assert torch.equal(original[0].weight, first)  # the net that was given is untouched
    pruning = [progress for epoch, _, progress in model.seen if epoch < 4]
    assert pruning == [step / 16 for step in range(16)]
    assert {progress for epoch, _, progress in model.seen if epoch >= 4} == {None}
    assert len(model.made) == 2 and model.made[1] == sum(p.numel() for p in model.net.parameters()) < model.made[0]
    held = {id(p) for group in fit.optimizers[0].param_groups for p in group["params"]}
    assert held == {id(p) for p in model.net.parameters()}
    assert fit.callback_metrics["accuracy"] > 0.9
    assert trainer(1).validate(model, data())[0]["accuracy"] > 0.9


def test_without_epochs_for_fine_tuning_the_net_is_slim_in_the_end() -> None:
    model, callback = Lit(), FxPruneCallback("1/2", 2)
    trainer(2, callback).fit(model, data())
    check(model, callback, 1 / 2)


WAYS: dict[str, dict[str, Any]] = {
    "micro-batches": {"accumulate_grad_batches": 2},
    "bfloat16": {"precision": "bf16-mixed"},
    "float16, scaled": {"plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))},
    "clipped": {"gradient_clip_val": 0.1},
}


@pytest.mark.parametrize("way", WAYS)
def test_other_ways_of_training(way: str) -> None:
    model, callback = Lit(), Keep(1 / 4, 6)
    trainer(7, callback, **WAYS[way]).fit(model, data())
    check(model, callback, 1 / 4)
    wrapped = callback.wrapped
    assert wrapped.cost().volume < wrapped.full_cost().volume / 3  # by training, before anything was cut
    parts = [0.5, 1.0] * 12 if way == "micro-batches" else [1.0] * 24
    assert callback.asked == [scale * part for scale, part in zip(callback.scales, parts, strict=True)]
    assert (callback.scales[0] > 1) == (way == "float16, scaled")


def test_the_budget_presses_as_in_a_loop_of_ones_own() -> None:
    """The same gates and weights, up to rounding."""
    model, alone = Lit(), Lit()
    alone.load_state_dict(model.state_dict())
    callback, batches = Keep(1 / 2, 3), data()
    torch.manual_seed(5)
    trainer(3, callback).fit(model, batches)

    net = fxprune.wrap(alone.net, 1 / 2, example_inputs=EXAMPLE)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    torch.manual_seed(5)
    for epoch in range(3):
        for step, (x, y) in enumerate(batches):
            net.progress = (epoch * 4 + step) / 12
            loss = F.cross_entropy(net(x), y) + net.budget_loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    torch.testing.assert_close(callback.wrapped.bank.log_alpha, net.bank.log_alpha)
    torch.testing.assert_close(callback.wrapped.get_parameter("0.weight"), net.get_parameter("0.weight"))


@pytest.mark.parametrize("stopped", [2, 4, 5])  # while pruning, just before the swap, while fine-tuning
def test_resumes_from_a_checkpoint(stopped: int, tmp_path: Path) -> None:
    keep = ModelCheckpoint(dirpath=tmp_path, save_top_k=-1, filename="{epoch}", save_on_train_epoch_end=True)
    through, callback = Lit(), FxPruneCallback(1 / 2, 4)
    trainer(6, callback, keep, enable_checkpointing=True).fit(through, data())
    file = tmp_path / f"epoch={stopped - 1}.ckpt"
    found = torch.load(file, weights_only=True)
    assert (f"net.{MASKS}" in found["state_dict"]) == (stopped > 4)

    model, again = Lit(), FxPruneCallback(1 / 2, 4)
    goes_on = trainer(6, again)
    goes_on.fit(model, data(), ckpt_path=file)
    assert model.seen[0][0] == stopped and goes_on.current_epoch == 6
    check(model, again, 1 / 2)
    if stopped > 4:  # nothing random is left: the same weights
        for name, value in through.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value)


def test_a_checkpoint_of_the_slim_net_can_be_tested(tmp_path: Path) -> None:
    model = Lit()
    fit = trainer(4, FxPruneCallback(1 / 2, 3))
    fit.fit(model, data())
    fit.save_checkpoint(tmp_path / "last.ckpt")
    fresh = Lit()
    trainer(1, FxPruneCallback(1 / 2, 3)).validate(fresh, data(), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(fresh.net.eval()(x), model.net.eval()(x))


def test_a_network_inside_of_another_module() -> None:
    class Inner(Lit):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"net": self.net})
            del self.net

        @property
        def net(self) -> Any:
            return self.parts["net"]

    model, callback = Inner(), FxPruneCallback(1 / 2, 1, network="parts.net")
    trainer(2, callback).fit(model, data())
    assert model.net is callback.slim


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="write epochs=10"):
        FxPruneCallback(1 / 2, 0)
    with pytest.raises(OptionError, match="no network 'backbone'; its submodules are net"):
        trainer(2, FxPruneCallback(1 / 2, 1, network="backbone")).fit(Lit(), data())
    silent = Lit()
    silent.example_input_array = None
    with pytest.raises(OptionError, match=r"example_inputs=torch\.zeros"):
        trainer(2, FxPruneCallback(1 / 2, 1)).fit(silent, data())
    manual = Lit()
    manual.automatic_optimization = False
    with pytest.raises(OptionError, match="automatic optimization"):
        trainer(2, FxPruneCallback(1 / 2, 1)).fit(manual, data())
    with pytest.raises(OptionError, match="smallest"):
        trainer(2, FxPruneCallback(1 / 1000, 1)).fit(Lit(), data())
