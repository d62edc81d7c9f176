"""How many kernels a training step with gates takes: few, and no more of them in a wider net."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fxprune
from examples.models import resnet8
from fxprune.gated.wrapped import Wrapped

NETS = ("resnet18", "resnet50", "mobilenet_v2")
FORWARD = 1.5  # of what the plain net takes
LOSS, PROGRESS = 100, 50  # ResNet-50 took 6,400 for the loss before it was computed on the host
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal"}  # for the device; shapes that depend on data


class Kernels(TorchDispatchMode):
    """Counts what is computed; a view is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def kernels(work: Callable[[], Any]) -> Counter[str]:
    with Kernels() as counted:
        work()
    return counted.seen


def wrapped_net(model: nn.Module, x: torch.Tensor) -> Wrapped:
    net = fxprune.wrap(model.train(), 1 / 4, example_inputs=x, verify=False).train()
    with torch.no_grad():
        net.bank.log_alpha.uniform_(-2, 2)
    net.progress = 0.0
    return net


@pytest.fixture(params=NETS)
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, Wrapped, torch.Tensor]:
    models, x = pytest.importorskip("torchvision.models"), torch.randn(2, 3, 64, 64)
    model = getattr(models, request.param)(num_classes=10).train()
    return model, wrapped_net(model, x), x


def test_gates_add_few_kernels(pair: tuple[nn.Module, Wrapped, torch.Tensor]) -> None:
    model, net, x = pair
    plain, gated = (kernels(lambda net=net: net(x)) for net in (model, net))
    assert gated.total() <= FORWARD * plain.total()
    assert not WAITS & set(gated)
    loss = kernels(lambda: torch.autograd.grad(net.budget_loss(), net.bank.log_alpha))
    assert loss.total() <= LOSS  # the first one looks at what each gate costs, too
    net.budget_loss().backward()
    assert kernels(lambda: setattr(net, "progress", 0.1)).total() <= PROGRESS


def test_backward_passes_add_few_kernels() -> None:
    model, x = resnet8(width=8), torch.randn(4, 3, 12, 16)
    net = wrapped_net(model, x)
    outputs = [model(x).sum(), net(x).sum()]
    plain, gated = (kernels(output.backward) for output in outputs)
    assert gated.total() <= plain.total() + 40  # of the draw; each norm had six


def test_a_wider_net_takes_no_more() -> None:
    seen = []
    for width in (8, 16):
        x = torch.randn(2, 3, 12, 16)
        net = wrapped_net(resnet8(width=width), x)
        parts = (lambda: net(x), net.budget_loss, net.bank.eval, lambda: net(x))  # noqa: B023
        seen.append([kernels(part) for part in parts])
    assert seen[0] == seen[1]
