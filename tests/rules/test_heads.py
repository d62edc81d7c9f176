"""Attention in the forms in which people write it: which gates it gets, that its slim form is exact, and narrow."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import fxprune
from fxprune.analysis.inspection import Inspection
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.streams import find_streams
from fxprune.save.onnx import to_onnx
from tests.exactness import call, check_export, error, random_gates, random_masks
from tests.gates import check_gates, told_of
from tests.heads import Attention, Form
from tests.models import randomise

T = torch.Tensor
Masks = dict[str, T]
SIZES = ((2, 5), (1, 7), (3, 4))  # samples and tokens
PACKED = {"qkv": "queries 4, heads 2, values 4"}
APART = {"q": "queries 4", "k": "keys", "v": "heads 2, values 4"}
FOUR = {"heads": 4, "width": 2, "shared": 2}
SHARED = {"q": "queries 2", "k": "keys", "v": "heads 2, values 2"}
BY_CHANNEL: dict[str, str | int] = {"qkv": 24}

CASES: dict[Form, tuple[dict[str, Any], dict[str, str | int]]] = {
    Form("unbind"): ({}, PACKED),
    Form("indexed", "sdpa"): ({}, PACKED),
    Form("chunk"): ({}, PACKED),
    Form("slices", "sdpa", "flatten"): ({}, PACKED),
    Form("head by head"): ({}, PACKED),
    Form("innermost", "sdpa"): ({}, PACKED),
    Form("heads inside"): ({}, PACKED),
    Form("split", "sdpa"): ({"of_values": 3}, {"qkv": "queries 4, heads 2, values 3"}),
    Form("split"): (FOUR | {"of_values": 3}, {"qkv": "queries 2, heads 2, values 3"}),
    Form("apart", "sdpa", "view"): ({}, APART),
    Form("apart"): (FOUR, SHARED),
    Form("apart", "sdpa"): (FOUR, SHARED),
    Form("apart", "grouped"): (FOUR, SHARED),
    Form("apart", "broadcast"): (
        {"heads": 4, "shared": 4, "width": 3},
        {"q": "queries 3", "k": "keys", "v": "values 3"},
    ),
    Form("keys and values"): ({}, {"q": "queries 4", "kv": "heads 2, values 4"}),
    Form("keys and values", "grouped"): (FOUR, {"q": "queries 2", "kv": "heads 2, values 2"}),
    Form("one head", "product", "one head"): ({"heads": 1}, {}),
    Form("one head", "bmm", "one head"): ({"heads": 1}, {}),
    Form("values are the input"): ({}, {"q": "queries 4", "k": "keys"}),
    Form("unbind", "values first"): ({}, PACKED),
    Form("unbind", "causal"): ({}, PACKED),
    Form("unbind", "einsum"): ({}, PACKED),
    Form(with_heads="norms"): ({}, PACKED),
    Form(with_heads="cosine"): ({}, PACKED),
    Form(product="sdpa", with_heads="rotary"): ({}, {"qkv": "queries 2, heads 2, values 4"}),
    Form(with_heads="scale"): ({}, PACKED),
    Form(product="sdpa", with_heads="shift"): ({}, PACKED),
    Form(with_heads="activation"): ({}, PACKED),
    Form(with_scores="bias"): ({}, PACKED),
    Form(product="values first", with_scores="bias"): ({}, PACKED),
    Form(product="einsum", with_scores="scale of scores"): ({}, PACKED),
    Form(with_scores="talking"): ({}, PACKED),
    Form(mask="lower"): ({}, PACKED),
    Form(mask="of heads"): ({}, PACKED),
    Form(mask="of samples"): ({}, PACKED),
    Form(behind="gated"): ({}, PACKED | {"gate": "scales other channels"}),
    Form(behind="scale of heads"): ({}, PACKED),
    Form(product="sdpa", behind="activation"): ({}, PACKED),
    # exact, and no heads: gates of channels, which are computed at full width where heads have different ones
    Form("in batch", "bmm", "in batch"): ({}, {}),
    Form("apart", "one for all"): ({"heads": 3, "shared": 3, "width": 3}, {}),
    Form("unbind", "linear"): ({}, BY_CHANNEL),
    Form("unbind", "between channels"): ({}, BY_CHANNEL),
    Form("unbind", join="cat"): ({}, {"qkv": "frozen by torch.cat"}),
}
OPAQUE = {Form(mask="lower"): ("Tensor.tril",), Form("unbind", join="cat"): ("torch.cat",)}
BY_CHANNELS = ("linear", "between channels", "one for all")
WIDE = {form for form in CASES if form.project == "in batch" or form.product in BY_CHANNELS}
KEYS_STAY = ("norms", "cosine")  # statistics of keys are those of all channels that the wrapped net has
every_form = pytest.mark.parametrize("form", list(CASES), ids=repr)


class Net(nn.Module):
    """One block on a stream of tokens."""

    def __init__(self, attend: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.embed, self.attend = nn.Linear(3, width), attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.wide, self.back, self.head = nn.Linear(width, 6), nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: T) -> T:
        x = self.embed(x)
        x = x + self.attend(self.norms[0](x))
        x = x + self.back(F.gelu(self.wide(self.norms[1](x))))
        return self.head(self.norms[2](x).mean(1))


def built(net: nn.Module, seed: int = 0) -> nn.Module:
    return randomise(net.double().eval(), torch.Generator().manual_seed(seed))


def of_form(form: Form, seed: int = 0) -> nn.Module:
    options, _ = CASES[form]
    return built(Net(Attention(8, form, **options)), seed)


def inputs(sizes: Any = SIZES, channels: int = 3) -> list[tuple[T]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(*size, channels, dtype=torch.float64, generator=generator),) for size in sizes]


def wrapped_of(net: nn.Module, example: tuple[T]) -> Wrapped:
    wrapped = fxprune.wrap(net, 0.5, example_inputs=example)
    random_gates(wrapped, torch.Generator().manual_seed(2))
    return wrapped


def kinds_of_masks(wrapped: Wrapped) -> Iterator[Masks]:
    """All open, all shut, each unit shut or with a single gate, whole layers shut, and random ones."""
    generator, gates = torch.Generator().manual_seed(3), wrapped.gates
    shut = {name: torch.zeros(len(gate)) for name, gate in gates.items()}
    yield {}
    yield shut
    for name, mask in shut.items():
        one = mask.clone()
        one[int(torch.randint(len(mask), (), generator=generator))] = 1
        yield {name: mask}
        yield {name: one}
        yield shut | {name: one}
    for layer in wrapped.analysis.layers:
        if len(layer.units) > 1:
            yield {unit.name: shut[unit.name] for unit in layer.units}
    for density in (0.8, 0.5, 0.5, 0.2):
        yield random_masks(wrapped, density, generator)


def check_all_masks(net: nn.Module, given: list[Any], wrapped: Wrapped | None = None) -> Wrapped:
    wrapped = wrapped_of(net, given[0]) if wrapped is None else wrapped
    for masks in kinds_of_masks(wrapped):
        check_export(wrapped.set_masks(masks), given, verify=False, counted=False)
        wrapped.bank.soften()
    return wrapped


@every_form
def test_gates(form: Form) -> None:
    net = of_form(form)
    wrapped = fxprune.wrap(net, 0.5, example_inputs=inputs()[0])
    check_gates(net, wrapped.analysis, OPAQUE.get(form, ()), {f"attend.{k}": v for k, v in CASES[form][1].items()})
    for given in inputs():
        assert error(call(wrapped, given), call(net, given)) <= 1e-12


@every_form
def test_exact(form: Form) -> None:
    check_all_masks(of_form(form), inputs())


def lives(wrapped: Wrapped, name: str) -> int:
    return int(wrapped.gates[name].mask.sum()) if name in wrapped.gates else 1


@pytest.mark.parametrize(
    "form",
    [form for form in CASES if form not in WIDE and form.join != "cat" and form.with_scores != "talking"],
    ids=repr,
)
def test_narrow(form: Form) -> None:
    """Every head of the slim net is as wide as there are gates open, and no wider."""
    net, wrapped = of_form(form), wrapped_of(of_form(form), inputs()[0])
    attend: Any = net.attend
    letters = {name: name for name in ("q", "k", "v", "kv", "qkv") if hasattr(attend, name)}
    for seed in range(4):
        wrapped.set_masks(random_masks(wrapped, 0.6, torch.Generator().manual_seed(seed)))
        layers = dict(fxprune.export(wrapped, verify=False).named_modules())
        masks = {name.removeprefix("attend."): int(gate.mask.sum()) for name, gate in wrapped.gates.items()}
        queries = next((n for k, n in masks.items() if k.endswith("queries") or k == "q"), 0)
        values = next((n for k, n in masks.items() if k.endswith("values") or k == "v"), attend.width)
        heads = next((n for k, n in masks.items() if k.endswith("heads")), attend.groups)
        queries *= 2 if form.with_heads == "rotary" else 1
        if form.project == "one head":
            queries = next(iter(layers["attend.q"].weight.shape)) if "attend.q" in layers else 0
        keys = attend.width if form.with_heads in KEYS_STAY else queries
        rows = {"q": attend.shared * heads * queries, "k": heads * keys, "v": heads * values}
        for name in letters:
            expected = sum(rows[letter] for letter in name) if values and heads else 0
            found = layers[f"attend.{name}"].out_features if f"attend.{name}" in layers else 0
            assert found == expected, f"{name}: {found} rows, {expected} expected, of {masks}"
        wrapped.bank.soften()


class Shapes(fx.Interpreter):
    """Remembers the shapes of what products of attention read."""

    def run_node(self, n: fx.Node) -> Any:
        if n.target is F.scaled_dot_product_attention:
            self.shapes = [tuple(tensor.shape) for tensor in self.fetch_args_kwargs_from_env(n)[0]]
        return super().run_node(n)


def test_products_are_narrow() -> None:
    net = built(Net(Attention(8, Form("unbind", "sdpa"), heads=4, width=6)))
    (example,) = inputs(((2, 5),))
    wrapped = wrapped_of(net, example)
    wrapped.set_masks({
        "attend.qkv.heads": torch.tensor([1, 0, 1, 1]), "attend.qkv.queries": torch.tensor([1, 0, 1, 1, 0, 0]),
        "attend.qkv.values": torch.tensor([0, 0, 0, 1, 1, 0]),
    })  # fmt: skip
    slim = check_export(wrapped, [example], verify=False, counted=False)
    run = Shapes(slim)
    run.run(*example)
    assert run.shapes == [(2, 3, 5, 3)] * 3  # of one width, for torch's fast kernels; not of the model's, which is six
    assert slim.attend.qkv.out_features == 3 * (3 + 3 + 2)  # type: ignore[union-attr]
    assert slim.attend.out.in_features == 3 * 2  # type: ignore[union-attr]


def test_without_heads_a_block_is_its_residual_path() -> None:
    wrapped = wrapped_of(of_form(Form()), inputs()[0])
    slim = check_export(wrapped.set_masks({"attend.qkv.heads": torch.zeros(2)}), inputs(), verify=False)
    assert not [name for name, _ in slim.named_parameters() if name.startswith(("attend", "norms.0"))]
    assert not [node for node in slim.graph.nodes if node.name.startswith("softmax")]


def test_each_head_keeps_its_strongest_channels() -> None:
    net: Any = of_form(Form())
    strong = {("queries", 0): 2, ("queries", 1): 0, ("values", 0): 3, ("values", 1): 1}
    with torch.no_grad():
        for (role, head), place in strong.items():
            net.attend.qkv.weight[16 * (role == "values") + 4 * head + place] *= 100
    wrapped = wrapped_of(net, inputs()[0])
    first = torch.tensor([1, 0, 0, 0])
    wrapped.set_masks({"attend.qkv.queries": first, "attend.qkv.values": first})
    slim: Any = check_export(wrapped, inputs(), verify=False, counted=False)
    kept = [0 * 8 + 2, 0 * 8 + 4, 1 * 8 + 2, 1 * 8 + 4, 16 + 3, 16 + 4 + 1]
    values = wrapped.gate_values()["attend.qkv"][kept]
    rows = slim.attend.qkv.weight / values[:, None]
    torch.testing.assert_close(rows.sort(0)[0], net.attend.qkv.weight[kept].detach().sort(0)[0])


# ------------------------------------------------------------ nets around attention


class Classified(nn.Module):
    """A class token, and nothing else, is read at the end; ``first`` of the first block's queries only."""

    def __init__(self, form: Form, tokens: int = 1, blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.tokens = nn.Linear(3, 8), nn.Parameter(torch.ones(1, tokens, 8))
        heads = 1 if form.project == "one head" else 2
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(8), "attend": Attention(8, form, heads, tokens=6)})
            for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        x = self.embed(x)
        x = torch.cat((self.tokens.expand(x.shape[0], -1, -1), x), 1)
        for block in self.blocks:
            x = x + block["attend"](block["norm"](x))  # type: ignore[index]
        return self.head(self.norm(x)[:, 0])


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(
    "form",
    [Form(), Form("apart", "sdpa"), Form(with_scores="bias"), Form("one head", "product", "one head"),
     Form("unbind", "linear"), Form("unbind", "einsum")],
    ids=repr,
)  # fmt: skip
def test_class_token(form: Form, tokens: int) -> None:
    net, given = built(Classified(form, tokens)), inputs(((2, 3), (1, 4), (3, 2)))
    wrapped = check_all_masks(net, given)
    shut = {name: torch.zeros(len(gate)) for name, gate in wrapped.gates.items()}
    wrapped.set_masks(shut)
    slim = fxprune.export(wrapped)
    assert any(name.startswith("blocks") for name, _ in slim.named_parameters()), "the token does not see the input"


class Twice(nn.Module):
    """The same attention in two blocks, on two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.again, self.attend = nn.Linear(3, 8), nn.Linear(8, 8), Attention(8, Form())
        self.head = nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        x = self.embed(x)
        x = x + self.attend(x)
        y = F.gelu(self.again(x))
        return self.head((y + self.attend(y)).mean(1))


class Queried(nn.Module):
    """Queries that are parameters, as in DETR and in pooling by attention, for each sample or for all of them."""

    def __init__(self, form: Form, expanded: bool = True) -> None:
        super().__init__()
        self.expanded = expanded
        self.queries, self.embed = nn.Parameter(torch.ones(1, 4, 8)), nn.Linear(3, 8)
        self.attend, self.wide, self.head = Attention(8, form), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: T) -> T:
        queries = self.queries.expand(x.shape[0], -1, -1) if self.expanded else self.queries
        return self.head(F.gelu(self.wide(self.attend(queries, self.embed(x)))).mean(1))


class Crossed(nn.Module):
    """Queries of one stream, keys and values of another."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.embed, self.other = nn.Linear(3, 8), nn.Linear(3, 8)
        self.attend, self.head = Attention(8, form), nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        y = F.relu(self.embed(x[:, 1:]))
        return self.head((y + self.attend(y, self.other(x))).mean(1))


class Scaled(nn.Module):
    """Attention whose keys another layer reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.keys, self.rest = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 16)
        self.also, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        x = self.embed(x)
        k = self.keys(x)
        heads = [y.unflatten(-1, (2, 4)).transpose(1, 2) for y in (*self.rest(x).chunk(2, -1), k)]
        y = F.scaled_dot_product_attention(heads[0], heads[2], heads[1]).transpose(1, 2).flatten(2)
        return self.head((x + y + self.also(k)).mean(1))


class OneOfTwo(nn.Module):
    """Two products of attention that share their values, or their queries."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.embed, self.shared = nn.Linear(3, 8), shared
        self.layers = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q", "k", "v", "q2", "k2", "v2")})
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        x = self.embed(x)
        heads = {name: layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for name, layer in self.layers.items()}
        heads[f"{self.shared}2"] = heads[self.shared]
        y = F.scaled_dot_product_attention(heads["q"], heads["k"], heads["v"])
        y = y - F.scaled_dot_product_attention(heads["q2"], heads["k2"], heads["v2"])
        return self.head((x + self.out(y.transpose(1, 2).flatten(2))).mean(1))


class Torch(nn.Module):
    """The modules of torch."""

    def __init__(self, made: nn.Module) -> None:
        super().__init__()
        self.embed, self.made, self.head = nn.Linear(3, 8), made, nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        x = self.embed(x)
        y = x + self.made(x, x, x)[0] if isinstance(self.made, nn.MultiheadAttention) else self.made(x)
        return self.head(y.mean(1))


NETS: dict[str, tuple[Any, dict[str, str | int]]] = {
    "twice": (Twice, {"attend.qkv": PACKED["qkv"]}),
    "queries of each sample": (lambda: Queried(Form("apart", "sdpa")), {f"attend.{n}": g for n, g in APART.items()}),
    "queries of all samples": (
        lambda: Queried(Form("apart", join="flatten"), expanded=False),
        {"attend.k": 8, "attend.v": APART["v"]},  # constants do not tell heads
    ),
    "two streams": (lambda: Crossed(Form("apart")), {f"attend.{name}": told for name, told in APART.items()}),
    "two streams, shared": (
        lambda: Crossed(Form("keys and values", "sdpa")),
        {"attend.q": "queries 4", "attend.kv": "heads 2, values 4"},
    ),
    "keys read twice": (Scaled, {"keys": 8, "rest": "queries 4, heads 2, values 4"}),
    "shared values": (lambda: OneOfTwo("v"), {}),
    "shared queries": (lambda: OneOfTwo("q"), {}),
    "MultiheadAttention": (lambda: Torch(nn.MultiheadAttention(8, 2, batch_first=True)), {}),
    "encoder": (lambda: Torch(nn.TransformerEncoderLayer(8, 2, 6, batch_first=True, norm_first=True)), {}),
}


@pytest.mark.parametrize("name", list(NETS))
def test_nets(name: str) -> None:
    build, declared = NETS[name]
    wrapped = check_all_masks(built(build()), inputs())
    told = {layer.name: told_of(layer) for layer in wrapped.analysis.layers}
    assert {name: told[name] for name in declared} == declared


# ------------------------------------------------------------ copies


def test_state_of_other_weights() -> None:
    """Which channel of a head a place is, is part of the state."""
    form = Form()
    wrapped = wrapped_of(of_form(form), inputs()[0])
    wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(0)))
    other = fxprune.wrap(of_form(form, seed=9), 0.5, example_inputs=inputs()[0])
    assert other.analysis.places != wrapped.analysis.places
    other.load_state_dict(copy.deepcopy(wrapped.state_dict()))
    assert other.analysis.places == wrapped.analysis.places
    for made in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other)), copy.deepcopy(wrapped)):
        assert made.analysis.places == wrapped.analysis.places
        for given in inputs():
            torch.testing.assert_close(call(made, given), call(wrapped, given), rtol=0, atol=0)
        assert made.cost() == wrapped.cost()
        check_export(made, inputs(), verify=False, counted=False)
        made.bank.soften()
        check_all_masks(made, inputs(), made)


def test_places_stay_while_weights_change() -> None:
    wrapped = wrapped_of(of_form(Form()), inputs()[0])
    before = copy.deepcopy(wrapped.analysis.places)
    randomise(wrapped.get_submodule("attend"), torch.Generator().manual_seed(12))
    for made in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert made.analysis.places == before
        check_all_masks(made, inputs(), made)


def test_the_original_state_loads() -> None:
    net, wrapped = of_form(Form(), seed=4), wrapped_of(of_form(Form()), inputs()[0])
    before = copy.deepcopy(wrapped.analysis.places)
    wrapped.load_state_dict(net.state_dict())
    assert wrapped.analysis.places == before
    check_all_masks(wrapped, inputs(), wrapped)


@pytest.mark.parametrize("form", [Form("unbind", "sdpa"), Form(), Form("unbind", "einsum")], ids=repr)
def test_slim_nets_leave(form: Form, tmp_path: Path) -> None:
    """Saved as source, exported, compiled, with regular blocks: all of them compute the same."""
    (example,) = inputs(((2, 5),))
    wrapped = wrapped_of(built(Classified(form)), example)
    wrapped.set_masks(random_masks(wrapped, 0.6, torch.Generator().manual_seed(5)))
    slim = fxprune.export(wrapped)
    fxprune.save(slim, tmp_path / "slim")
    samples = torch.export.Dim("samples", min=2, max=64)
    others = {
        "saved": fxprune.load(tmp_path / "slim"),
        "exported": torch.export.export(slim, example, dynamic_shapes=({0: samples},)).module(),
        "compiled": torch.compile(slim, backend="aot_eager"),
        "dense": fxprune.export(wrapped, connectivity="dense"),
    }
    for name, made in others.items():
        torch.testing.assert_close(made(*example), slim(*example), rtol=1e-9, atol=1e-9, msg=name)


def test_onnx() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net, (example,) = built(Classified(Form("unbind", "sdpa"))).float(), inputs(((2, 5),))
    given = example[0].float()
    wrapped = fxprune.wrap(net, 0.5, example_inputs=given)
    slim = fxprune.export(wrapped.set_masks(random_masks(wrapped, 0.6, torch.Generator().manual_seed(5))))
    session = onnxruntime.InferenceSession(to_onnx(slim, (given,), {}))
    (found,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), slim(given), rtol=1e-4, atol=1e-5)


def test_reports_tell_heads() -> None:
    wrapped = wrapped_of(of_form(Form()), inputs()[0])
    masks = {"attend.qkv.heads": torch.tensor([0, 1]), "attend.qkv.queries": torch.tensor([1, 1, 1, 0])}
    report: Any = fxprune.export(wrapped.set_masks(masks)).report
    assert report.heads == {"attend.qkv.queries": 3, "attend.qkv.heads": 1, "attend.qkv.values": 4}
    seen = fxprune.inspect(of_form(Form()), inputs()[0])
    (layer,) = [layer for layer in seen.layers if layer.heads]
    assert [(unit.name, unit.closes, unit.gates) for unit in layer.units] == [
        ("attend.qkv.queries", "width", 4), ("attend.qkv.heads", "head", 2), ("attend.qkv.values", "width", 4),
    ]  # fmt: skip
    data = json.loads(json.dumps(seen.as_dict()))
    assert Inspection.restored(data) == seen
    for info in data["layers"]:
        del info["units"]  # as it was told before there were any
    assert not any(layer.units for layer in Inspection.restored(data).layers)


def test_rows_of_a_function_are_known() -> None:
    """Projections of ``nn.MultiheadAttention`` are rows of one parameter."""
    net: Any = built(Torch(nn.MultiheadAttention(8, 2, batch_first=True)))
    wrapped = fxprune.wrap(net, 0.5, example_inputs=inputs()[0])
    writers = {writer.unit.name: writer for stream in find_streams(wrapped) for writer in stream.writers}
    packed = net.made.in_proj_weight.detach()
    torch.testing.assert_close(writers["made.q_proj.queries"].weight, packed[:8])
    torch.testing.assert_close(writers["made.v_proj.heads"].weight, packed[16:])
    filters = writers["made.v_proj.heads"].filters
    torch.testing.assert_close(filters, packed[16:].reshape(2, -1))


# ------------------------------------------------------------ bad input, and options


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ({"attend.qkv": torch.zeros(24)}, "such as 'attend.qkv.queries' or 'attend.qkv.heads' or 'attend.qkv.values'"),
        ({"attend.qkv.head": torch.zeros(2)}, "such as 'attend.qkv.queries' or 'attend.qkv.heads'"),
        ({"attend.qkv.keys": torch.zeros(4)}, "'attend.qkv.keys' has no gate"),
        ({"attend.qkv.heads": torch.zeros(3)}, "3 numbers, its gate has 2 variables"),
        ({"attend.qkv.heads": torch.zeros(8)}, r"\(4 of 'attend.qkv.queries', 2 of 'attend.qkv.heads', 4 of"),
    ],
)
def test_masks_that_fit_no_gate(masks: Masks, told: str) -> None:
    wrapped = wrapped_of(of_form(Form()), inputs()[0])
    with pytest.raises(OptionError, match=told):
        wrapped.set_masks(masks)
    with pytest.raises(OptionError, match=told):
        wrapped.harden(masks)
    assert not wrapped.hardened


def test_ignored_heads() -> None:
    net, example = of_form(Form()), inputs()[0]

    def kept(*ignore: str) -> list[str]:
        wrapped = check_all_masks(net, inputs(), fxprune.wrap(net, 0.5, example_inputs=example, ignore=ignore))
        return [name.removeprefix("attend.qkv.") for name in wrapped.gates if name.startswith("attend.qkv")]

    assert kept("attend.qkv") == []
    assert kept("*.heads") == ["queries", "values"]
    assert kept("*.queries", "*.values") == ["heads"]
    with pytest.raises(OptionError, match=r"'attend.qkv.head' matches no layer\n.*such as 'attend.qkv.queries' or"):
        fxprune.wrap(net, 0.5, example_inputs=example, ignore=("attend.qkv.head",))


def test_widths_of_heads() -> None:
    net = built(Net(Attention(8, Form(), heads=6, width=16)))
    wrapped = wrapped_of(net, inputs()[0])

    def opened(**options: Any) -> dict[str, int]:
        wrapped.bank.soften()
        wrapped.harden(**options)
        check_export(wrapped, inputs(), verify=False, counted=False)
        return {name.removeprefix("attend.qkv."): int(gate.mask.sum()) for name, gate in wrapped.gates.items()}

    least = opened(minimum={"*.heads": 4, "*.values": 5}, budget={"volume": 0.4})
    assert least["heads"] >= 4 and least["values"] >= 5
    assert opened(minimum={"*.heads": 40}, budget={"volume": 0.6})["heads"] == 6
    even = opened(multiple_of=8, budget={"volume": 0.6})
    assert even["queries"] % 8 == even["values"] % 8 == 0 and even["heads"] > 0
    with pytest.raises(OptionError, match=r"such as 'attend.qkv.queries' or 'attend.qkv.heads'"):
        wrapped.harden(minimum={"attend.qkv": 4})
