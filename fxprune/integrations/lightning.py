"""Pruning inside of Lightning's ``Trainer``, by a callback. Needs ``pip install lightning``.

Lightning's hooks decide where things happen:

- ``setup`` comes before a checkpoint is loaded and before ``configure_optimizers``: the network is wrapped there;
- ``on_before_backward`` sees the loss that is differentiated: the budget's is added to it in place;
- a checkpoint's weights are loaded before callbacks see it. So the masks of a network that is slim already travel
  with its weights, and a hook of ``load_state_dict`` makes the slim net just before they are put into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from fxprune.api import export, wrap
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; pip install lightning", name=error.name) from error

MASKS = "fxprune_masks"  # beside the weights of a slim net, in checkpoints


class FxPruneCallback(Callback):
    """Prune for ``epochs`` epochs, then fine-tune the slim net for the rest of the Trainer's.

    ``network`` names the attribute of the LightningModule that holds the net to prune. ``example_inputs`` is what that
    net is called with; without it the module's ``example_input_array`` is taken. All else is for ``fxprune.wrap``.
    When the slim net takes the place of the wrapped one, ``configure_optimizers`` is asked again. ``callback.slim`` is
    the slim net, once there is one.
    """

    def __init__(
        self, budget: float | str | Mapping[str, float | str], epochs: int, *, network: str = "net",
        example_inputs: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise OptionError(f"epochs={epochs!r} is no number of epochs to prune for", fix="write epochs=10")
        self.budget, self.epochs, self.network = budget, epochs, network
        self.example_inputs, self.options = example_inputs, options
        self.slim: fx.GraphModule | None = None
        self._masks: torch.Tensor | None = None
        self._hook: Any = None

    # ------------------------------------------------------------ wrapping

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        _check(trainer, pl_module)
        net = self._net(pl_module)
        if not isinstance(net, Wrapped) and net is not self.slim:
            wrapped = wrap(net, self.budget, example_inputs=self._example(pl_module), **self.options)
            pl_module.set_submodule(self.network, wrapped)
        self._hook = pl_module.register_load_state_dict_pre_hook(self._before_load)  # type: ignore[no-untyped-call]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._hook.remove()

    def _net(self, pl_module: LightningModule) -> nn.Module:
        try:
            return pl_module.get_submodule(self.network)
        except AttributeError as error:
            names = ", ".join(name for name, _ in pl_module.named_children()) or "none"
            raise OptionError(
                f"{type(pl_module).__name__} has no network {self.network!r}; its submodules are {names}",
                fix=f"name the one to prune: FxPruneCallback(..., network={names.partition(',')[0]!r})",
            ) from error

    def _example(self, pl_module: LightningModule) -> Any:
        example = self.example_inputs if self.example_inputs is not None else pl_module.example_input_array
        if example is None:
            raise OptionError(
                "nobody says what the network is called with",
                fix="write FxPruneCallback(..., example_inputs=torch.zeros(1, 3, 32, 32))",
            )
        return example

    # ------------------------------------------------------------ training with gates

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(self._net(pl_module), Wrapped) and trainer.current_epoch >= self.epochs:
            self._swap(pl_module)
            trainer.strategy.setup_optimizers(trainer)  # the old optimizers hold parameters of the wrapped net

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        net = self._net(pl_module)
        if isinstance(net, Wrapped) and batch_idx % trainer.accumulate_grad_batches == 0:
            if not isinstance(trainer.num_training_batches, int):
                raise OptionError("the training data have no length", fix="write Trainer(limit_train_batches=1000)")
            done = trainer.current_epoch * trainer.num_training_batches + batch_idx
            net.progress = min(done / (self.epochs * trainer.num_training_batches), 1.0)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """``loss`` is already scaled (half precision, micro-batches): the loss of the budget must be scaled, too."""
        net = self._net(pl_module)
        if isinstance(net, Wrapped):
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scale = (1.0 if scaler is None else scaler.get_scale()) / trainer.accumulate_grad_batches
            loss.add_(scale * net.budget_loss().to(loss))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(self._net(pl_module), Wrapped):  # no epoch is left for fine-tuning
            self._swap(pl_module)

    # ------------------------------------------------------------ the slim net

    def _swap(self, pl_module: LightningModule) -> None:
        wrapped = self._net(pl_module)
        assert isinstance(wrapped, Wrapped)
        if not wrapped.hardened:
            wrapped.harden()
        self._masks = torch.cat([gate.mask.cpu() for gate in wrapped.gates.values()])
        self.slim = export(wrapped)
        pl_module.set_submodule(self.network, self.slim)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._masks is not None:
            checkpoint["state_dict"][f"{self.network}.{MASKS}"] = self._masks

    def _before_load(self, pl_module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        masks = state.pop(f"{prefix}{self.network}.{MASKS}", None)
        assert isinstance(pl_module, LightningModule)
        wrapped = self._net(pl_module)
        if masks is not None and isinstance(wrapped, Wrapped):
            gates = [len(gate) for gate in wrapped.gates.values()]
            if masks.numel() != sum(gates):
                raise OptionError(
                    f"the checkpoint is of a net with {masks.numel()} gates, this one has {sum(gates)}",
                    fix="use the model and the options of FxPruneCallback that the checkpoint was made with",
                )
            wrapped.set_masks(dict(zip(wrapped.gates, masks.cpu().split(gates), strict=True)))
            self._swap(pl_module)


def _check(trainer: Trainer, pl_module: LightningModule) -> None:
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise OptionError(
            f"the network changes while it is trained, which {type(trainer.strategy).__name__} does not follow",
            fix="write Trainer(devices=1); examples/ddp.py prunes on several devices",
        )
    if not pl_module.automatic_optimization:
        raise OptionError(
            "FxPruneCallback needs Lightning's automatic optimization",
            fix="leave automatic_optimization alone, or write the loop of docs/how-to/training-loop.md",
        )
