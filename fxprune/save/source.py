"""The whole file: a class that needs torch only, and ``load()``."""

from __future__ import annotations

import hashlib
import keyword
from typing import Any

import torch
from torch import fx, nn

from fxprune.errors import ExportError
from fxprune.save.contents import Contents, contents
from fxprune.save.expressions import (
    Records,
    access,
    flat,
    group,
    is_data_class,
    is_named_tuple,
    prefixed,
    quoted,
    render,
)
from fxprune.save.forward import Forward, without_idle
from fxprune.torch_private import backward_hooks, forward_hooks

MARK, END = "# Written by fxprune", "    return net.eval()"  # the first words and the last line of code
_SEAL = "# Whole and unchanged if the blake2b digest of all lines before this one is "
_OWN = ("F", "OrderedDict", "Part", "Path", "dataclass", "load", "math", "namedtuple", "nn", "operator", "put", "self",
        "tie", "torch", "Any")  # fmt: skip

_PART = '''
class Part(nn.Module):
    """Holds modules and tensors under the names that they have in the original net: part[0] is the one called "0"."""

    def __getitem__(self, name):
        return getattr(self, str(name))


def put(net, path, value, persistent=True):
    """Install a module, a parameter or a buffer under a dotted path."""
    *owners, name = path.split(".")
    for owner in owners:
        if owner not in net._modules:
            net.add_module(owner, Part())
        net = net._modules[owner]
    if isinstance(value, nn.Module):
        net.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        net.register_parameter(name, value)
    else:
        net.register_buffer(name, value, persistent)
'''


def source(slim: fx.GraphModule, version: str) -> str:
    """Python source whose ``load()`` gives the net, with the weights of the file ``weights.pt`` beside it."""
    name = class_name(slim)
    if forward_hooks(slim) or backward_hooks(slim):
        raise ExportError("the net has hooks, which are Python code", fix="remove them before saving")
    graph, idle = without_idle(slim)
    held, reserved = contents(slim, graph), {*_OWN, name, *keyword.kwlist}
    records = Records(reserved)
    forward = Forward(graph, records, reserved)
    body = forward.lines(4)
    blocks = [
        _header(slim, version, idle),
        _imports(forward.used, records, held),
        *records.definitions(),
        _PART.strip("\n").split("\n"),
        *([_tie(held)] if held.ties else []),
        [f"class {name}(Part):", *_init(held), "", *body],
        _load(name, held),
    ]
    head, imports, *rest = ("\n".join(block) for block in blocks)
    space = "\n\n\n" if rest[0].startswith(("class", "@")) else "\n\n"
    text = f"{head}\n\n{imports}{space}" + "\n\n\n".join(rest) + "\n\n\n"
    return f"{text}{_SEAL}{_digest(text)}\n"


def whole(text: str) -> str:
    """The text, if it is as it was written: one letter more or less could be another net.

    Source without a last line that tells the digest was written by an older version, or changed on purpose.
    """
    code, sealed, digest = text.rpartition(_SEAL)
    if not (sealed or text).rstrip().endswith((END, _SEAL.rstrip())):
        raise EOFError("its end is missing")
    if sealed and digest.strip() != _digest(code):
        raise ValueError("it is not what was written (changed on purpose? Then remove its last line)")
    return text


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def class_name(slim: nn.Module) -> str:
    """That of the original, unless the source needs it for something else."""
    name = type(slim).__name__
    fits = name.isidentifier() and not keyword.iskeyword(name) and name not in _OWN
    return name if fits else "Net"


def _header(slim: fx.GraphModule, version: str, idle: list[str]) -> list[str]:
    lines = [
        f"{MARK} {version} for torch {torch.__version__.partition('+')[0]}. It needs torch only:",
        "#",
        "#     net = load()  # with the weights in weights.pt beside this file, in eval mode",
    ]
    report: Any = getattr(slim, "report", None)
    before, after = getattr(report, "before", None), getattr(report, "after", None)
    if isinstance(before, dict) and isinstance(after, dict):
        lines += ["#", f"# {'per sample':<15}{'before':>18}{'after':>18}"]
        for metric in before:
            share = f"{after[metric] / before[metric]:9.1%}" if before[metric] else ""
            lines.append(f"# {metric.replace('_', ' '):<15}{before[metric]:>18,}{after[metric]:>18,}{share}")
    if idle:
        lines += ["#", f"# Left out, for in eval mode they do nothing: {', '.join(idle)}."]
    return lines


def _imports(used: set[str], records: Records, held: Contents) -> list[str]:
    standard = [f"import {name}" for name in ("math", "operator") if any(f.startswith(f"{name}.") for f in used)]
    has_ordered = any("OrderedDict(" in flat(doc) for doc in held.table.values())
    has_tuples, has_classes = (any(map(is_one, records.names)) for is_one in (is_named_tuple, is_data_class))
    wanted = {
        "collections": ["OrderedDict"] * has_ordered + ["namedtuple"] * has_tuples,
        "dataclasses": ["dataclass"] * has_classes,
        "pathlib": ["Path"],
        "typing": ["Any"] * has_classes,
    }
    named = [f"from {module} import {', '.join(names)}" for module, names in wanted.items() if names]
    functional = ["import torch.nn.functional as F"] if any(name.startswith("F.") for name in used) else []
    return [*standard, *named, "", "import torch", *functional, "from torch import nn"]


def _init(held: Contents) -> list[str]:
    lines = ["    def __init__(self):", "        super().__init__()"]
    for name, table, how in (("parts", held.table, "value"), ("constants", held.unsaved, "value, persistent=False")):
        if table:
            lines.append(f"        {name} = {{")
            for path, doc in table.items():
                lines += render(prefixed(f"{quoted(path)}: ", doc, ","), 12)
            lines += ["        }", f"        for path, value in {name}.items():", f"            put(self, path, {how})"]
    if held.ties:
        lines.append("        tie(self)")
    if held.frozen:
        end = ",):" if len(held.frozen) == 1 else "):"
        frozen = group("for path in (", [quoted(path) for path in held.frozen], end)
        lines += [*render(frozen, 8), "            self.get_parameter(path).requires_grad_(False)"]
    return lines


def _tie(held: Contents) -> list[str]:
    lines = ["def tie(net):", '    """One parameter under several names."""']
    return lines + [f"    {access(other, 'net')} = {access(first, 'net')}" for other, first in held.ties]


def _load(name: str, held: Contents) -> list[str]:
    lines = [
        'def load(device="cpu"):',
        '    """The net with its weights, in eval mode."""',
        '    weights = torch.load(Path(__file__).with_name("weights.pt"), map_location=device, weights_only=True)',
        '    with torch.device("meta"):  # the weights come from the file',
        f"        net = {name}()",
    ]
    for path in held.unsaved:
        lines.append(f"    {access(path, 'net')} = weights.pop({quoted(path)})")
    lines.append("    net.load_state_dict(weights, assign=True)")
    if held.ties:
        lines.append("    tie(net)")
    return [*lines, END]
