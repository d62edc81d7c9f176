"""What real models do in their forward, one habit per test."""

from __future__ import annotations

import contextlib
import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from fxprune.errors import InputError, ModelError, TraceError
from fxprune.trace import graph_module, trace


class Net(nn.Module):
    """A convolution and a function that uses it."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.conv, self.run = nn.Conv2d(3, 8, 3, padding=1), forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def traced(forward: Any, x: torch.Tensor) -> tuple[nn.Module, nn.Module, Any]:
    model = Net(forward).double().eval()
    tracing = trace(model, x)
    return model, graph_module(tracing, model), tracing


X = torch.randn(2, 3, 8, 6, dtype=torch.float64)
LARGER = torch.randn(3, 3, 10, 12, dtype=torch.float64)


def unpacked(net: Net, x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = net.conv(x).shape
    return net.conv(x).view(b, c, h * w).mean(2)


def iterated(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    return F.interpolate(y, size=[2 * d for d in y.shape[2:]])


def split(net: Net, x: torch.Tensor) -> torch.Tensor:
    parts = net.conv(x).split(2, dim=1)
    return sum(part * k for k, part in zip((1, 2, 3, 4), parts, strict=True))


def length(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.conv(x).reshape(len(x), -1)


def rounded(net: Net, x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(net.conv(x), (math.ceil(x.shape[2] / 3), round(x.shape[3] / 2)))


def factory(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.conv(x) + torch.arange(x.shape[3], dtype=x.dtype, device=x.device) + torch.zeros(x.size(0), 1, 1, 1)


def larger_of(net: Net, x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(net.conv(x), size=max(x.shape[2], 4))


def filled(net: Net, x: torch.Tensor) -> torch.Tensor:
    """As anchor generators do."""
    stride = torch.empty((), dtype=x.dtype, device=x.device).fill_(x.shape[2] // 4)
    return net.conv(x) * stride


@pytest.mark.parametrize("forward", [unpacked, iterated, split, length, rounded, factory, larger_of, filled])
def test_sizes_that_are_passed_on_stay_symbolic(forward: Any) -> None:
    model, graph, _ = traced(forward, X)
    for x in (X, LARGER):
        torch.testing.assert_close(graph(x), model(x), rtol=0, atol=0)


def branching(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    return y.mean((2, 3)) if x.shape[2] > 8 else y.amax((2, 3))


def counting(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    return sum(y[:, :, row] for row in range(y.shape[2]))


def halved(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.conv(x)[:, :, : int(x.shape[2] * 0.3)]


@pytest.mark.parametrize("forward", [branching, counting, halved])
def test_what_python_consumes_is_asserted(forward: Any) -> None:
    model, graph, tracing = traced(forward, X)
    torch.testing.assert_close(graph(X), model(X))
    assert tracing.specialisations
    assert "test_tracing.py" in tracing.specialisations[0].source
    with pytest.raises(AssertionError, match="another way"):
        graph(LARGER)


def in_place(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    z = y.relu_()
    y += 1
    return y * 2 + z  # z and y are one tensor


def into_slice(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    y[:, 2:4] = y[:, 0:2] * 2
    y[:, 0] = 1.0
    return y


def through_a_view(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    y.narrow(1, 1, 2).add_(1.5)
    y[:, :2].mul_(-1).add_(y[:, 2:4])
    return y


def through_a_view_of_a_view(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    outer = y[:, 1:]
    inner = outer[..., 0]
    inner += 2
    outer *= 3
    return y * 2


def through_two_halves(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    one, other = y[:, :4], y[:, 4:]
    one += 1
    other *= 2
    return y + torch.cat([other, one], 1)


@pytest.mark.parametrize(
    "forward", [in_place, into_slice, through_a_view, through_a_view_of_a_view, through_two_halves]
)
def test_in_place_ops_keep_their_meaning(forward: Any) -> None:
    model, graph, _ = traced(forward, X)
    torch.testing.assert_close(graph(X), model(X), rtol=0, atol=0)


def whole_after_part(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    part = y[:, :2]
    part += 1
    y *= 2
    return y + part.sum()


def overlapping_parts(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    one, other = y[:, :3], y[:, 1:]
    one += 1
    other *= 2
    return y + one.sum()


@pytest.mark.parametrize("forward", [whole_after_part, overlapping_parts])
def test_a_view_that_would_not_follow_is_refused(forward: Any) -> None:
    with pytest.raises(TraceError, match="written in place through another view"):
        traced(forward, X)


class Undecided(nn.Module):
    """Looks at data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.a, self.inner, self.b = nn.Conv2d(3, 4, 1), inner, nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.inner(self.a(x)))


def test_the_innermost_module_that_cannot_be_traced_becomes_a_leaf() -> None:
    model = Holder(nn.Sequential(nn.ReLU(), Undecided())).double()
    tracing = trace(model, X)
    assert [leaf.path for leaf in tracing.leaves] == ["inner.1"]
    assert "depends on the input" in tracing.leaves[0].reason
    torch.testing.assert_close(graph_module(tracing, model)(X), model(X))


def test_a_root_that_cannot_be_traced_is_an_error_with_its_line() -> None:
    with pytest.raises(TraceError, match="depends on the input") as caught:
        trace(Undecided(), X)
    assert "test_tracing.py" in str(caught.value)


class Detector(nn.Module):
    """Its own forward decodes what the convolutions found."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.score = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> list[float]:
        return sorted(self.score(self.backbone(x)).flatten().tolist())[:3]


def test_a_root_that_cannot_be_traced_names_the_part_to_wrap_instead() -> None:
    with pytest.raises(TraceError, match="of a tensor that depends on the input") as caught:
        trace(Detector().double(), X)
    assert "model.backbone = fxprune.wrap(model.backbone, ...)" in str(caught.value)


def test_an_input_that_the_model_rejects_is_told_apart() -> None:
    with pytest.raises(InputError, match="rejects the example"):
        trace(Holder(nn.Identity()), torch.zeros(1, 5, 4, 4))


class Caching(nn.Module):
    """Keeps what it saw on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 4, 1), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.conv(x)
        self.seen.append(self.last)
        return self.last.relu()


def test_the_model_is_untouched() -> None:
    model = Caching()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace(model, torch.zeros(1, 3, 4, 4))
    assert not hasattr(model, "last")
    assert model.seen == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.conv(x), 0.5, training=self.training)


def test_functional_dropout_follows_the_mode() -> None:
    model = Dropping()
    graph = graph_module(trace(model, torch.ones(1, 3, 4, 4)), model)
    x = torch.ones(1, 3, 4, 4)
    torch.testing.assert_close(graph.eval()(x), model.eval()(x))
    assert bool((graph.train()(x) == 0).any())


class Counting(nn.Module):
    """Remembers what it saw, also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.copy_(x.mean())
        return x


def test_a_module_that_overwrites_its_buffer_is_a_leaf() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), Counting(), nn.Conv2d(8, 2, 1)).double()
    graph = graph_module(trace(net, X), net)
    graph(X)
    torch.testing.assert_close(graph.get_buffer("1.seen"), net[0](X).mean())


@pytest.mark.parametrize("where", ["", "0", "1", "2", "2.0"])
@pytest.mark.parametrize("before", [True, False])
def test_hooks_are_part_of_the_model(where: str, before: bool) -> None:
    body = nn.Sequential(nn.Conv2d(8, 6, 1), nn.ReLU())
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), body, nn.Conv2d(6, 4, 1), nn.Conv2d(4, 2, 1)).double().eval()
    if before:
        net.get_submodule(where).register_forward_pre_hook(lambda module, args: (args[0] * 2 + 1,))
    else:
        net.get_submodule(where).register_forward_hook(lambda module, args, out: out * 2 + 1)
    with pytest.warns(match="hooks of") if where in ("", "2") else contextlib.nullcontext():
        wrapped = fxprune.wrap(net, 1 / 2, example_inputs=X)
    torch.testing.assert_close(wrapped(X), net(X))
    wrapped.set_masks({name: torch.arange(len(gate)) % 2 == 0 for name, gate in wrapped.gates.items()})
    torch.testing.assert_close(fxprune.export(wrapped)(X), wrapped(X))
    leaves = [(leaf.path, leaf.reason) for leaf in wrapped.analysis.channels.trace.leaves]
    assert leaves == (
        [] if where in ("", "2") else [(where, "it has forward hooks")]
    )  # those of a container are traced


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor, *, other: dict[str, torch.Tensor], double: bool = False) -> dict[str, Any]:
        y = self.conv(x) + other["bias"]
        return {"y": y * 2 if double else y, "parts": [y.mean(), (y.amax(), 3)]}


def test_keywords_dicts_and_flags() -> None:
    model = Options().double()
    given = {"x": X, "other": {"bias": torch.randn(4, 1, 1).double()}, "double": True}
    graph = graph_module(trace(model, given), model)
    torch.testing.assert_close(graph(**given), model(**given))
    with pytest.raises(AssertionError, match="another way"):
        graph(**{**given, "double": False})


def test_parametrized_and_subclassed_layers_are_convolutions() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return F.conv2d(x, weight, self.bias, self.stride, self.padding)

    class Named(nn.Conv2d):
        """The same forward as its parent."""

    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1))
    net = nn.Sequential(Standardised(3, 8, 3), Named(8, 8, 3), normed, nn.Conv2d(8, 2, 1))
    seen = fxprune.inspect(net, torch.zeros(1, 3, 12, 12))
    assert [layer.name for layer in seen.layers] == ["0", "1", "2", "3"]
    assert [layer.gates for layer in seen.layers] == [8, 8, 8, 0]


def test_without_an_example_shapes_must_not_matter() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    assert len(fxprune.wrap(net, 1 / 2).gates["0"]) == 8
    with pytest.raises(TraceError, match="example_inputs"):
        fxprune.wrap(Net(branching), 1 / 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_made_up_example_has_the_models_dtype(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)).to(dtype)
    wrapped, x = fxprune.wrap(net, 1 / 2), torch.zeros(2, 3, 8, 8, dtype=dtype)
    wrapped(x)
    assert fxprune.export(wrapped)(x).dtype == dtype


def test_an_example_without_a_batch_is_refused_where_the_model_refuses_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1))
    with pytest.raises(InputError, match="expected 4D input"):
        fxprune.wrap(net, 1 / 2, example_inputs=torch.zeros(3, 8, 8))


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(nn.LazyConv2d(8, 3), nn.Conv2d(8, 2, 1)), "run one batch"),
        (lambda: torch.compile(small()), "pass the original model"),
        (lambda: nn.Sequential(torch.compile(small()), nn.Conv2d(2, 2, 1)), "0 is compiled"),
        (lambda: torch.jit.trace(small(), torch.zeros(1, 3, 8, 8)), "pass the original model"),
    ],
    ids=["lazy", "compiled", "compiled inside", "scripted"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_models_that_cannot_be_read(build: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fxprune.wrap(build(), 1 / 2, example_inputs=torch.zeros(1, 3, 8, 8))


def test_places_where_no_model_can_be_pruned() -> None:
    with torch.inference_mode(), pytest.raises(ModelError, match="leave inference_mode"):
        fxprune.wrap(small(), 1 / 2, example_inputs=torch.zeros(1, 3, 8, 8))
    wrapped = fxprune.wrap(small().to("meta"), 1 / 2, example_inputs=torch.zeros(1, 3, 8, 8))
    with pytest.raises(ModelError, match="load the weights"):
        fxprune.export(wrapped)


def mismatched(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    return torch.cat([y, y[:, :, 1:]], 1)


def wrong_product(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.conv(x).flatten(1) @ torch.ones(5, 5, dtype=x.dtype)


def wrong_layer(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.conv(net.conv(x))


def complaining(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    if y.shape[1] == 8:
        raise RuntimeError("eight is too many")
    return y


@pytest.mark.parametrize(
    ("forward", "line", "message"),
    [
        (mismatched, "torch.cat", "Sizes of tensors must match"),
        (wrong_product, "torch.ones", "shapes cannot be multiplied"),
        (wrong_layer, "net.conv(net.conv", "to have 3 channels, but got 8"),
        (complaining, "raise RuntimeError", "eight is too many"),
    ],
)
def test_a_wrong_call_comes_out_with_its_own_words_and_line(forward: Any, line: str, message: str) -> None:
    """Although the op is tried again on data when the meta device refuses it."""
    lines, first = inspect.getsourcelines(forward)
    number = next(first + at for at, text in enumerate(lines) if line in text)
    with pytest.raises(InputError, match=message) as caught:
        traced(forward, X)
    assert caught.value.where == f"{__file__}:{number}"


def second_choice(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    try:
        return torch.matmul(y, y)
    except RuntimeError:
        return torch.matmul(y, y.transpose(2, 3))


def test_a_model_may_catch_the_error_of_a_wrong_call() -> None:
    model, graph, _ = traced(second_choice, X)
    torch.testing.assert_close(graph(X), model(X), rtol=0, atol=0)


def test_an_op_that_only_the_meta_device_refuses_is_traced() -> None:
    @torch.library.custom_op("fxprune_tests::turned", mutates_args=())
    def turned(x: torch.Tensor) -> torch.Tensor:
        if x.is_meta:
            raise RuntimeError("not implemented here")
        return x.flip(2)

    model, graph, _ = traced(lambda net, x: turned(net.conv(x)), X)
    torch.testing.assert_close(graph(X), model(X), rtol=0, atol=0)


def positional_flag(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.conv(x)
    F.rrelu(y, 0.1, 0.3, False, True)
    return y


def test_a_positional_flag_writes_in_place() -> None:
    model, graph, _ = traced(positional_flag, X)
    torch.testing.assert_close(graph(X), model(X), rtol=0, atol=0)
