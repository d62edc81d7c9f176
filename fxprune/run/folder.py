"""The folder of a pruning run: ``run.json``, ``network.json``, ``hardened/`` and ``slim/``. Nothing in it is pickled.

- ``run.json``: what was pruned, on which inputs, to which budget, and how far the run is.
- ``network.json``: the layers and joins of the net, and what became of them: for reports, which run no code.
- ``hardened/``: the net after its gates were decided, at its original width, as source and weights.
- ``slim/``: the final net, as source and weights. Fine-tuned, it computes something else than ``hardened/``.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fxprune import __version__
from fxprune.analysis.inspection import describe, plain
from fxprune.cost.model import METRICS, Cost
from fxprune.cost.target import Target
from fxprune.count import Count, batch_size, count
from fxprune.errors import ExportError, FxPruneError, OptionError, RunError, first_line
from fxprune.files import as_path, file_above, read_json, told, write_atomically, write_json
from fxprune.gated.gates_as_constants import frozen
from fxprune.gated.wrapped import Wrapped
from fxprune.run.layout import FACTS, HARDENED, NETWORK, NETWORK_SCHEMA, RUN_SCHEMA, RUN_VERSION, SLIM
from fxprune.save.net_folder import read, text_of, write_net
from fxprune.slim.connectivity import present_ids
from fxprune.slim.report import survivors
from fxprune.slim.verify import TOLERANCE, noise, tensors
from fxprune.torch_private import tree_map


def described(value: Any) -> Any:
    """
    >>> described((torch.zeros(1, 3), {"scale": 2}))
    {'tuple': [{'shape': [1, 3], 'dtype': 'float32'}, {'dict': {'scale': 2}}]}
    """
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if type(value) in (tuple, list):
        return {type(value).__name__: list(map(described, value))}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: described(entry) for key, entry in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise OptionError(
        f"an example input of type {type(value).__module__}.{type(value).__qualname__} cannot be written down",
        fix="use tensors, numbers and texts, in tuples, lists and dicts, as example_inputs",
    )


def restored(text: Any) -> Any:
    """The inverse of ``described``: tensors are zeros, and those of floats have a shape only, no data.

    >>> restored({"tuple": [{"shape": [1, 3], "dtype": "int64"}, {"dict": {"scale": 2}}]})
    (tensor([[0, 0, 0]]), {'scale': 2})
    """
    if not isinstance(text, dict):
        return text
    if set(text) == {"shape", "dtype"}:
        dtype = getattr(torch, str(text["dtype"]), None)
        if isinstance(dtype, torch.dtype) and all(type(size) is int and size >= 0 for size in text["shape"]):
            return torch.zeros(text["shape"], dtype=dtype, device="meta" if dtype.is_floating_point else "cpu")
    for kind in (tuple, list):
        if set(text) == {kind.__name__}:
            return kind(map(restored, text[kind.__name__]))
    if set(text) == {"dict"}:
        return {key: restored(entry) for key, entry in text["dict"].items()}
    raise RunError(f"{text} describes no example input")


STAGES = ("pruning", "fine-tuning", "finished")  # no net is written yet; hardened/ is; slim/ is, too
_NAME = "name the folder of a pruning run; fxprune prune CONFIG.toml --run FOLDER makes one"


class Run:
    """A run folder that exists; ``Run.create`` starts a new one.

    >>> import fxprune, tempfile
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> wrapped = fxprune.wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8)).harden()
    >>> run = Run.create(tempfile.mkdtemp(), wrapped)
    >>> run.write_hardened(wrapped)
    >>> run.write_slim(fxprune.export(wrapped))
    >>> again = Run(run.folder)
    >>> again.stage, again.target.limits, again.slim()(*again.example(batch=5)[0]).shape
    ('finished', (('volume', 0.5),), torch.Size([5, 4, 4, 4]))
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder, "folder")
        with told("read", self.folder, RunError):
            self._facts = _read(self.folder)
        try:
            self._inputs = restored(self._facts["args"]), restored(self._facts["kwargs"])
            self.model = str(self._facts["model"])
            costs = self._facts["full_cost"]  # runs of before have more of them
            self.full_cost = Cost(**{each.name: costs[each.name] for each in fields(Cost) if each.name in costs})
            self.target = Target.of(dict(self._facts["budget"]), "volume")
            costs = [*self.full_cost.as_dict().values(), *(self.cost or {}).values()]
            if list(map(type, self._inputs)) != [tuple, dict]:
                raise ValueError("inputs that are none")
            if not all(type(number) is int and number >= 0 for number in costs):
                raise ValueError("a cost that is no whole number")
            if self.cost is not None and set(self.cost) != set(METRICS):
                raise ValueError(f"a cost of {', '.join(self.cost) or 'nothing'}")
            if self.stage not in STAGES:
                raise ValueError(f"there is no stage {self.stage!r}")
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, FxPruneError) as error:
            said = error.cause if isinstance(error, FxPruneError) else f"{type(error).__name__}: {error}"
            raise _damaged(self.folder, said) from error

    @classmethod
    def create(cls, folder: str | os.PathLike[str], wrapped: Wrapped) -> Run:
        """Start a run; the folder must be new or empty."""
        _check_wrapped(wrapped, "Run.create")
        path = as_path(folder, "folder")
        args, kwargs = wrapped.analysis.channels.trace.example
        facts = {
            "schema": f"{RUN_SCHEMA}{RUN_VERSION}",
            "fxprune": __version__,
            "model": type(wrapped).__name__,
            "args": described(tuple(args)),
            "kwargs": described(dict(kwargs)),
            "full_cost": wrapped.full_cost().as_dict(),
            "budget": dict(wrapped.target.limits),
            "stage": STAGES[0],
            "cost": None,  # of slim/
        }
        with told("written", path, RunError):
            _check_empty(path)
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / FACTS, facts)
            _record(path, {"inspection": _described(wrapped)})
        return cls(path)

    @property
    def stage(self) -> str:
        """``"pruning"``, ``"fine-tuning"`` once the gates are decided, or ``"finished"``."""
        return str(self._facts["stage"])

    @property
    def cost(self) -> dict[str, int] | None:
        """Volume, FLOPs and parameters of the slim net, once there is one."""
        cost: dict[str, int] | None = self._facts["cost"]
        return cost

    def write_hardened(self, wrapped: Wrapped) -> None:
        """Keep the hardened net, at its original width."""
        _check_wrapped(wrapped, "write_hardened")
        self._write(HARDENED, frozen(wrapped))
        living = survivors(wrapped.analysis, present_ids(wrapped.analysis, wrapped.masks()))
        self.record(inspection=_described(wrapped), living=living, joins=None, certificate=None)
        self._update(stage=STAGES[1], cost=None)

    def write_slim(self, slim: fx.GraphModule) -> None:
        """Keep the final net, and what it costs."""
        if self.stage == STAGES[0]:
            raise RunError(
                f"{self.folder} has no hardened net yet: what the slim net was made from is missing",
                fix="call run.write_hardened(wrapped) first",
            )
        counted = self._count(slim)
        self._write(SLIM, slim)
        report: Any = getattr(slim, "report", None)
        if getattr(report, "living", None):  # a net that was loaded has none
            # How export compared the hardened net with the slim one; without an error (None) it did not.
            compared = {"error": report.error, "batches": report.batches, "dtype": "float64", "tolerance": TOLERANCE}
            certificate = {**compared, "fused": report.fused}
            self.record(living=report.living, joins=report.joined, certificate=certificate)
        self._update(stage=STAGES[2], cost={metric: getattr(counted, metric) for metric in METRICS})

    def record(self, **facts: Any) -> None:
        """Add facts for the report to ``network.json``."""
        with told("written", self.folder, RunError):
            _record(self.folder, facts)

    def _count(self, slim: fx.GraphModule) -> Count:
        """The cost on the inputs of the run. A net that does not take them, or has other outputs, is refused."""
        if not isinstance(slim, fx.GraphModule) or isinstance(slim, Wrapped):
            raise OptionError(
                f"write_slim takes what fxprune.export returns, not a {type(slim).__name__}",
                fix="call run.write_slim(fxprune.export(wrapped))",
            )
        args, kwargs = self.example(dtype=torch.float32)
        net, hardened = copy.deepcopy(slim).cpu().float().eval(), self.hardened().float()
        try:
            counted = count(net, args, kwargs)
            with torch.no_grad():
                shapes, expected = ([t.shape for t in tensors(each(*args, **kwargs))] for each in (net, hardened))
        except Exception as error:
            raise _foreign(self.folder, first_line(error)) from error
        if shapes != expected:
            raise _foreign(self.folder, "its outputs have other shapes than those of the hardened net")
        return counted

    def hardened(self) -> nn.Module:
        """The net of ``hardened/``, in eval mode. This runs its source: load only what you trust."""
        return self._read(HARDENED, STAGES[1:], "until its gates are decided")

    def slim(self) -> nn.Module:
        """The net of ``slim/``, in eval mode. This runs its source: load only what you trust."""
        return self._read(SLIM, STAGES[2:], "to its end")

    def _read(self, part: str, stages: tuple[str, ...], until: str) -> nn.Module:
        if self.stage not in stages:
            raise RunError(
                f"{self.folder} has no {part} net yet: it is still {self.stage}", fix=f"let the run go on {until}"
            )
        return read(self.folder / part, "cpu")

    def example(
        self, batch: int | None = None, dtype: torch.dtype | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random inputs (integers: zeros) of the run's shapes, the same every time: positional and keyword arguments.

        ``batch`` takes the place of the batch size, ``dtype`` of the types of floating point.
        """

        def typed(value: Any, like: Any) -> Any:
            is_float = isinstance(like, torch.Tensor) and like.is_floating_point()
            return value.to(dtype or like.dtype) if is_float else value

        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise OptionError(f"batch={batch!r} is no batch size", fix="write a whole number, such as batch=4")
        drawn = noise(*self._inputs, batch or self.batch, torch.device("cpu"))
        args, kwargs = tree_map(typed, drawn, self._inputs)
        return args, kwargs

    @property
    def batch(self) -> int:
        """The batch size of the example that the net was pruned with."""
        return batch_size(*self._inputs)

    def _write(self, part: str, net: nn.Module) -> None:
        write_net(net, self.folder / part, __version__)

    def _update(self, **changes: Any) -> None:
        """Call it after the part is written: if the run is cut off in between, it claims too little, never too much."""
        self._facts = {**self._facts, **changes}
        write_json(self.folder / FACTS, self._facts)


def check_writable(wrapped: Wrapped) -> None:
    """Refuse a net that a run folder cannot hold, before it is trained."""
    try:
        text_of(frozen(wrapped), __version__)
    except ExportError as error:
        raise RunError(
            f"a run keeps its nets as source that needs torch only, but {error.cause}",
            fix="leave run out (then nothing can be resumed), or build the model from torch.nn's own modules",
        ) from error


def _described(wrapped: Wrapped) -> dict[str, Any]:
    return describe(wrapped.analysis, type(wrapped).__name__, wrapped.analysis.channels.trace.example).as_dict()


def _record(folder: Path, facts: dict[str, Any]) -> None:
    kept: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):  # the report works without
        kept = read_json(folder / NETWORK, NETWORK_SCHEMA)
    write_atomically(folder / NETWORK, json.dumps({"schema": NETWORK_SCHEMA, **kept, **plain(facts)}) + "\n")


def _check_empty(folder: Path) -> None:
    file = file_above(folder)
    if file is not None:
        raise RunError(f"{file} is a file, so there can be no folder {folder}", fix="name another folder")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RunError(
            f"{folder} is there already and is not an empty folder", fix="name another folder, or empty this one"
        )


def _read(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}", fix=_NAME)
    if not (folder / FACTS).is_file():
        runs = [each.parent for each in (folder.parent / FACTS, *sorted(folder.glob(f"*/{FACTS}"))) if each.is_file()]
        raise RunError(
            f"{folder} is not the folder of a run: it has no {FACTS}",
            fix=f"name {' or '.join(map(str, runs[:3]))}" if runs else _NAME,
        )
    facts: dict[str, Any]
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, str(error)) from error
    schema = str(facts.get("schema")) if isinstance(facts, dict) else ""
    version = schema.removeprefix(RUN_SCHEMA)
    if not schema.startswith(RUN_SCHEMA) or not version.isdecimal() or len(version) > 9:
        raise RunError(f"{folder / FACTS} was not written by fxprune", fix=_NAME)
    if int(version) > RUN_VERSION:
        raise RunError(
            f"{folder} was written by fxprune {facts.get('fxprune')}, in format {version}; "
            f"this one reads {RUN_VERSION}",
            fix="pip install --upgrade fxprune",
        )
    return facts


def _check_wrapped(wrapped: Any, call: str) -> None:
    if not isinstance(wrapped, Wrapped):
        raise OptionError(f"{call} takes a wrapped net, not a {type(wrapped).__name__}", fix="call fxprune.wrap first")


def _foreign(folder: Path, why: str) -> RunError:
    return RunError(
        f"this net does not belong to the run {folder}: {why}", fix="write what was exported from the run's wrapped net"
    )


def _damaged(folder: Path, why: str) -> RunError:
    return RunError(
        f"{folder / FACTS} is damaged: {why}", fix="restore it: what it says cannot be told from the other files"
    )
