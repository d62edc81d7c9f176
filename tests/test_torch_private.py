"""What torch does not document: all of it in one file, all of it still there, and nothing of it left changed."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.data import DataLoader

import fxprune
from fxprune import torch_private
from fxprune.errors import FxPruneError, InputError
from fxprune.trace import patches, trace

ROOT = Path(fxprune.__file__).parent
HERE = Path(torch_private.__file__)
HELD = {"_modules", "_parameters", "_buffers"}  # of a module, used everywhere
NOT_TORCHS = {
    "_assert",  # documented
    "_fields",  # of a named tuple
    "_getframe", "_exit",  # of sys and os
    "_SubParsersAction", "_option_string_actions",  # of argparse
    "_analysis", "_gated", "_original", "_place", "_restore", "_see_first_input", "_path",  # our own
}  # fmt: skip


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def names_of_torch() -> set[str]:
    """Names that the one file takes from torch, each behind the module that has it."""
    names = set()
    for node in ast.walk(ast.parse(HERE.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch."):
            names |= {f"{node.module}:{alias.name}" for alias in node.names}
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            names.add(ast.unparse(node).replace(".", ":", 1))
    return names


@pytest.mark.parametrize("name", sorted(names_of_torch()))
def test_torch_still_has(name: str) -> None:
    assert resolve_name(name) is not None


LAYER, GRAPH = nn.Conv2d(1, 1, 1), fx.symbolic_trace(nn.ReLU()).graph
ATTRIBUTES: list[tuple[Any, str]] = [
    *((LAYER, name) for name in sorted(HELD)),
    *((LAYER, f"_{kind}hooks") for kind in ("forward_", "forward_pre_", "backward_", "backward_pre_")),
    (LAYER, "_non_persistent_buffers_set"), (LAYER, "_apply"), (nn.BatchNorm2d(1), "_check_input_dim"),
    (torch.zeros(1), "_version"), (torch.zeros(1).untyped_storage(), "_cdata"), (GRAPH, "_find_nodes_lookup_table"),
    (DataLoader([0]), "_iterator"), (nn.LSTM(1, 1), "_flat_weights_names"), (nn.LSTM(1, 1), "_all_weights"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES, ids=lambda value: value if isinstance(value, str) else "of")
def test_objects_of_torch_still_have(owner: Any, name: str) -> None:
    assert hasattr(owner, name), f"{type(owner).__name__} has no {name} any more"


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_compiled_and_scripted_code_tells_what_it_is_made_of() -> None:
    assert getattr(torch.compile(LAYER), torch_private.COMPILED) is LAYER
    assert torch_private.python_of(torch.jit.script(twice)) is twice


def test_what_the_names_are_used_for() -> None:
    x, norm = torch.zeros(2, 2, device="meta"), nn.BatchNorm2d(2)
    assert torch_private.memory_of(x) == torch_private.memory_of(x[0]) != torch_private.memory_of(x.clone())
    before = torch_private.version(x)
    x.add_(1)
    assert torch_private.version(x) > before
    with pytest.raises(ValueError, match="4D"):
        torch_private.check_rank(norm, x)
    norm.register_buffer("passing", x, persistent=False)
    assert torch_private.unsaved_buffers(norm) == {"passing"}
    norm.register_forward_hook(print)
    norm.register_full_backward_hook(print)
    assert (torch_private.forward_hooks(norm), torch_private.backward_hooks(norm)) == ([print], [print])
    old = torch.nn.utils.weight_norm(nn.Linear(2, 2))
    assert isinstance(torch_private.pre_hooks(old)[0], torch_private.WeightNorm)
    graph = fx.Graph()
    node = graph.placeholder("x")
    assert torch_private.is_in(graph, node)
    graph.erase_node(node)
    assert not torch_private.is_in(graph, node)


@pytest.mark.parametrize("path", sorted(set(ROOT.rglob("*.py")) - {HERE}), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_uses_private_names(path: Path) -> None:
    own = ("self", "cls")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
            assert not any(map(private, [*str(node.module).split("."), *(alias.name for alias in node.names)]))
        elif isinstance(node, ast.Attribute) and private(node.attr) and ast.unparse(node.value) not in own:
            assert node.attr in HELD | NOT_TORCHS, f"line {node.lineno}: {ast.unparse(node)}"


def state() -> dict[str, Any]:
    """All that is replaced while a model is traced."""
    owners = {"builtins": builtins, "torch": torch, "helpers": torch_private.autograd_helpers}
    owners |= {"meta": torch_private.VariableMeta, "Function": torch.autograd.Function}
    owners |= {"Script": torch.jit.ScriptFunction, "Module": nn.Module, "here": __import__(__name__)}
    attributes = {f"{owner}.{name}": value for owner, held in owners.items() for name, value in vars(held).items()}
    return attributes | {f"mark {name}": scope for (_, name), scope in torch_private.marked_by_wrap.items()}


def marked(x: Any) -> Any:
    return x + 1


fx.wrap("marked")


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.zeros(x.shape[0])
        marked(x)
        raise RuntimeError("in the middle")


def changed(before: dict[str, Any]) -> list[str]:
    after = state()
    return [name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)]


def test_tracing_leaves_nothing_behind_when_the_model_raises() -> None:
    torch_private.import_dynamo()  # which leaves something behind when it is imported for the first time
    before = state()
    with pytest.raises(InputError, match="in the middle"):
        trace(Fails(), torch.zeros(1, 3))
    assert changed(before) == []


def test_tracing_leaves_nothing_behind_when_it_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    put = patches.replaced

    def refusing(owner: Any, name: str, value: Any) -> Any:
        if name == "tensor":  # others are replaced before it
            raise RuntimeError("cannot be replaced")
        return put(owner, name, value)

    monkeypatch.setattr(patches, "replaced", refusing)
    torch_private.import_dynamo()
    before = state()
    with pytest.raises(FxPruneError, match="cannot be replaced"):
        trace(nn.ReLU(), torch.zeros(1, 3))
    assert changed(before) == []


def test_dynamo_is_imported_before_anything_is_replaced() -> None:
    """In a process of its own: here other tests have imported it already."""
    code = (
        "import sys, torch, fxprune; x = torch.zeros(2, 3, 4, 4)\n"
        "net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 1))\n"
        "net = fxprune.wrap(net, 1 / 2, example_inputs=x).train()\n"
        "assert 'torch._dynamo' in sys.modules\n"
        "torch.compile(net, backend='eager', fullgraph=True)(x)\n"  # draws gates by torch.rand
    )
    subprocess.run([sys.executable, "-W", "error:Dynamo does not know", "-c", code], check=True, cwd=ROOT.parent)
