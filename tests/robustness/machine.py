"""A wrapped net in the hands of somebody who calls everything in any order."""

from __future__ import annotations

import copy
import io
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import fx, nn

import fxprune
from fxprune.errors import ExportError, FxPruneError, ModelError, OptionError
from fxprune.gated.bank import GATED, apply_gate, apply_mask
from fxprune.gated.wrapped import Wrapped
from fxprune.run.folder import Run
from tests.exactness import check_export, error
from tests.robustness.small_nets import NETS, images, small_net

seen: Counter[str] = Counter()  # rules that ran, nets, and what was refused; read by the tests
SEEDS = st.integers(0, 999)
BUDGETS = st.sampled_from([1.0, 0.7, 0.4, {"volume": 0.6, "flops": 0.5}, {"params": 0.5}])
# What is no progress, no masks, no scores: each is refused, and nothing changes.
WRONG_PROGRESS = [-0.1, 1.1, float("nan"), "half", None, 1 + 1j]
WRONG_OPTIONS: list[dict[str, Any]] = [
    {"scores": {"nobody": [1.0]}}, {"scores": 3}, {"multiple_of": 0}, {"minimum": {"nobody": 1}}, {"minimum": 3},
    {"budget": {"volume": 1e-9}}, {"budget": {"speed": 0.5}}, {"minimum": {"*": 99}, "budget": {"volume": 0.2}},
]  # fmt: skip


class Life(RuleBasedStateMachine):
    """Wraps a net once; then everything may happen to it."""

    @initialize(
        name=st.sampled_from(sorted(NETS)), seed=SEEDS, budget=BUDGETS, sized=st.booleans(), training=st.booleans(),
        noise=st.sampled_from(["batch", "sample"]), schedule=st.sampled_from(["sigmoid", "linear"]),
        density=st.sampled_from([None, 0.3, 0.6]),
    )  # fmt: skip
    def wrap(
        self, name: str, seed: int, budget: Any, sized: bool, training: bool, noise: str, schedule: str,
        density: float | None,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        seen[name] += 1
        self.folder = Path(tempfile.mkdtemp())
        self.model = small_net(name, seed).train(training)
        next(iter(self.model.parameters())).requires_grad_(seed % 3 > 0)
        self.untouched = snapshot(self.model)
        self.sized, self.options = sized, {"noise": noise, "schedule": schedule}
        self.budget = budget
        self.wrapped = self.fresh()
        self.kept: tuple[nn.Module, Any] | None = None  # an exported net, and what it computes
        self.met: dict[str, float] | None = None  # the budget that the masks were chosen for
        if density is not None:  # else most lives would end without ever having been hardened
            self.masks(density, seed, some=False)

    def fresh(self) -> Wrapped:
        example = {"example_inputs": images(1)} if self.sized else {}
        made = fxprune.wrap(self.model, self.budget, **example, **self.options)
        made.eval()(images(2))  # areas are known from here on
        return made.train(self.model.training)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------ training

    @rule(training=st.booleans())
    def mode(self, training: bool) -> None:
        self.wrapped.train(training)

    @rule(progress=st.floats(0, 1))
    def progress(self, progress: float) -> None:
        self.wrapped.progress = progress
        assert self.wrapped.progress == progress

    @rule(seed=SEEDS, decay=st.sampled_from([None, 0.1]))
    def step(self, seed: int, decay: float | None) -> None:
        """Of an optimizer with the groups as they are now."""
        net = self.wrapped
        groups = net.parameter_groups(lr=0.05, weight_decay=decay)
        listed = [id(p) for group in groups for p in group["params"]]
        assert sorted(listed) == sorted(id(p) for p in net.parameters())
        optimizer = torch.optim.SGD(groups, lr=0.05)
        if net.progress is None and not net.hardened:
            self.refused(OptionError, "net.progress = step / total", net.budget_loss)
            loss = net(images(3, seed)).square().mean()
        else:
            loss = net(images(3, seed)).square().mean() + net.budget_loss()
        assert bool(torch.isfinite(loss))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    @rule(law=st.sampled_from(["gaussian", "hard-concrete"]))
    def law(self, law: str) -> None:
        self.wrapped.set_law(law)

    # ------------------------------------------------------------ deciding

    @rule(density=st.sampled_from([0.0, 0.3, 0.8]), seed=SEEDS, some=st.booleans())
    def masks(self, density: float, seed: int, some: bool) -> None:
        random = torch.Generator().manual_seed(seed)
        asked = {name: torch.rand(len(gate), generator=random) < density for name, gate in self.wrapped.gates.items()}
        asked = dict(list(asked.items())[::2]) if some else asked
        self.wrapped.set_masks(asked)
        for name, gate in self.wrapped.gates.items():
            wanted = asked.get(name, torch.ones(len(gate), dtype=torch.bool))
            assert bool((gate.mask | ~wanted).all()), f"{name}: a channel died that was asked for"
        self.met = None

    @rule(
        fill=st.booleans(), seed=st.none() | SEEDS, multiple_of=st.sampled_from([1, 1, 2, 4]),
        minimum=st.sampled_from([None, {"*": 1}, {"*": 3}]), budget=st.sampled_from([None, {"volume": 0.5}]),
    )  # fmt: skip
    def harden(self, fill: bool, seed: int | None, multiple_of: int, minimum: Any, budget: Any) -> None:
        scores = None
        if seed is not None:
            random = torch.Generator().manual_seed(seed)
            scores = {name: torch.rand(len(gate), generator=random) for name, gate in self.wrapped.gates.items()}
        before = state_of(self.wrapped)
        try:
            self.wrapped.harden(scores, fill, multiple_of=multiple_of, minimum=minimum, budget=budget)
        except OptionError as refusal:  # only small budgets with wide layers
            assert "smallest that can be reached" in refusal.cause and refusal.fix
            assert_same(before, state_of(self.wrapped))
            seen["unreachable"] += 1
            return
        self.met = budget or dict(self.wrapped.target.limits)

    # ------------------------------------------------------------ copies

    @rule()
    def deepcopy(self) -> None:
        self.replace(copy.deepcopy(self.wrapped))

    @rule()
    def pickle(self) -> None:
        file = io.BytesIO()
        torch.save(self.wrapped, file)
        file.seek(0)
        self.replace(torch.load(file, weights_only=False))

    @rule()
    def checkpoint(self) -> None:
        """As docs/how-to/training-loop.md says: a state dict, and progress set again."""
        file = io.BytesIO()
        torch.save(self.wrapped.state_dict(), file)
        file.seek(0)
        made, progress = self.fresh(), self.wrapped.progress
        made.load_state_dict(torch.load(file, weights_only=True))
        if progress is not None:
            made.progress = progress
        self.replace(made.train(self.wrapped.training))

    def replace(self, made: Wrapped) -> None:
        """A copy is the same in every respect, and shares nothing that changes."""
        assert_same(state_of(self.wrapped), state_of(made))
        shared = {t.data_ptr() for t in self.wrapped.state_dict().values() if t.numel()}
        assert not shared & {t.data_ptr() for t in made.state_dict().values() if t.numel()}
        self.wrapped = made

    @rule()
    def unwrap(self) -> None:
        """The original's class, with the weights of now, in the same modes, and not shared."""
        made = self.wrapped.unwrap()
        assert type(made) is type(self.model) and made.training == self.wrapped.training
        own = self.wrapped.state_dict()
        for name, value in made.state_dict().items():
            assert torch.equal(value, own[name]) and value.data_ptr() != own[name].data_ptr()

    # ------------------------------------------------------------ export

    @rule(connectivity=st.sampled_from(["mixed", "mixed", "dense"]), fuse=st.booleans())
    def export(self, connectivity: str, fuse: bool) -> None:
        before = state_of(self.wrapped)
        try:
            slim = fxprune.export(self.wrapped, connectivity=connectivity, fuse=fuse, verify=False)
        except OptionError as refusal:
            assert not self.wrapped.hardened and "smallest that can be reached" in refusal.cause
            seen["unreachable"] += 1
            return
        assert_same(before, state_of(self.wrapped))
        assert slim.training == (self.wrapped.training and not fuse)  # folded batch norms are for inference
        if not self.wrapped.hardened:
            for metric, share in self.wrapped.target.limits if connectivity == "mixed" else ():
                assert slim.report.after[metric] <= share * slim.report.before[metric] * (1 + 1e-12)
        with torch.no_grad():
            self.kept = slim, slim.eval()(images(2))

    @precondition(lambda self: self.kept is not None)
    @rule()
    def save_and_load(self) -> None:
        slim, expected = self.kept
        folder = fxprune.save(slim, self.folder / "slim")
        loaded = fxprune.load(folder)
        assert list(loaded.state_dict()) == list(slim.state_dict())
        with torch.no_grad():
            assert torch.equal(loaded(images(2)), expected)

    @precondition(lambda self: self.kept is not None)
    @rule()
    def train_the_slim_net(self) -> None:
        """It has parameters of its own: the wrapped net does not notice."""
        before = state_of(self.wrapped)
        slim = copy.deepcopy(self.kept[0]).train()
        slim(images(3)).square().mean().backward()
        with torch.no_grad():
            for parameter in self.kept[0].parameters():
                parameter.add_(0.01)
            self.kept = self.kept[0], self.kept[0].eval()(images(2))
        assert_same(before, state_of(self.wrapped))

    @rule()
    def run_folder(self) -> None:
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        run = Run.create(self.folder / "run", self.wrapped)
        if not self.wrapped.hardened:
            self.refused(OptionError, "harden()", run.write_hardened, self.wrapped)
            assert Run(run.folder).stage == "pruning"
            return
        run.write_hardened(self.wrapped)
        run.write_slim(fxprune.export(self.wrapped, verify=False))
        found, again = self.computed(images(2)), Run(run.folder)
        with torch.no_grad():
            assert error(again.hardened()(images(2)), found) <= 1e-9
            assert error(again.slim()(images(2)), found) <= 1e-9

    # ------------------------------------------------------------ what is refused

    @rule(wrong=st.sampled_from(WRONG_PROGRESS))
    def no_progress(self, wrong: Any) -> None:
        self.refused(OptionError, "step / total", setattr, self.wrapped, "progress", wrong)

    @rule(wrong=st.sampled_from(WRONG_OPTIONS))
    def no_options(self, wrong: dict[str, Any]) -> None:
        self.refused(OptionError, "", self.wrapped.harden, **wrong)

    @rule(which=st.integers(0, 5), kind=st.sampled_from(["short", "half", "text", "list", "unknown"]))
    def no_masks(self, which: int, kind: str) -> None:
        """The last of several layers is wrong: those before it must not have been cut already."""
        names = list(self.wrapped.gates)
        name = names[which % len(names)]
        right: dict[str, Any] = {each: torch.zeros(len(self.wrapped.gates[each])) for each in names if each != name}
        many = len(self.wrapped.gates[name])
        wrong = {"short": [1] * (many - 1), "half": [0.5] * many, "text": "open", "unknown": [1]}.get(kind)
        masks: Any = [wrong] if kind == "list" else {**right, "no such layer" if kind == "unknown" else name: wrong}
        self.refused(OptionError, "", self.wrapped.set_masks, masks)

    @rule()
    def no_net(self) -> None:
        self.refused(ModelError, "unwrap()", fxprune.wrap, self.wrapped, 0.5)
        self.refused(ExportError, "fxprune.export(wrapped)", fxprune.save, self.wrapped, self.folder / "wrapped")
        self.refused(OptionError, "fxprune.wrap", fxprune.export, self.model)
        self.refused(OptionError, "'mixed'", fxprune.export, self.wrapped, connectivity="none")
        self.refused(OptionError, "'gaussian'", self.wrapped.set_law, "law")
        assert not (self.folder / "wrapped").exists()

    def refused(self, kind: type[FxPruneError], words: str, call: Any, *args: Any, **keywords: Any) -> None:
        """With a sentence that says what to do, and without a change."""
        before = state_of(self.wrapped)
        try:
            call(*args, **keywords)
        except kind as refusal:
            assert refusal.cause and refusal.fix and words in refusal.fix, str(refusal)
        else:
            raise AssertionError(f"{call} took {args} {keywords}")
        assert_same(before, state_of(self.wrapped))
        seen["refused"] += 1

    # ------------------------------------------------------------ always

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        """In eval mode, without changing that."""
        training = self.wrapped.training
        with torch.no_grad():
            found: torch.Tensor = self.wrapped.eval()(x)
        self.wrapped.train(training)
        return found

    @invariant()
    def exact(self) -> None:
        """Exported == wrapped, at two batch sizes; what is dead is zero."""
        seen["steps"] += 1
        if not self.wrapped.hardened:
            return
        training = self.wrapped.training
        check_export(self.wrapped.eval(), [(images(1),), (images(3),)], verify=False)
        DeadAreZero(self.wrapped).run(images(2))
        self.wrapped.train(training)
        seen["exact"] += 1

    @invariant()
    def on_budget(self) -> None:
        cost, full = self.wrapped.cost(), self.wrapped.full_cost()
        for metric, share in (self.met or {}).items():
            assert cost[metric] <= share * full[metric] * (1 + 1e-12)
        assert all(0 < cost[metric] <= full[metric] for metric in ("volume", "flops", "params"))

    @invariant()
    def the_model_is_untouched(self) -> None:
        assert_same(self.untouched, snapshot(self.model))

    @invariant()
    def the_exported_net_stays(self) -> None:
        if self.kept is not None:
            slim, expected = self.kept
            with torch.no_grad():
                assert torch.equal(slim(images(2)), expected)


class DeadAreZero(fx.Interpreter):
    """Behind every gate and mask, what is closed is zero."""

    def __init__(self, wrapped: Wrapped) -> None:
        super().__init__(wrapped)
        self.factors: list[torch.Tensor] = []

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        gated = n.op == "call_module" and isinstance(self.module.get_submodule(str(n.target)), tuple(GATED.values()))
        if gated or (n.op == "call_function" and n.target in (apply_gate, apply_mask)):
            factor = self.fetch_args_kwargs_from_env(n)[0][1]
            factor = factor[0] if isinstance(factor, tuple) else factor  # beside the affine map that took it in
            shape = [1, -1] + [1] * (result.ndim - 2) if factor.ndim == 1 else list(factor.shape)
            closed = (factor.reshape(shape) == 0).expand_as(result)
            assert bool((result[closed] == 0).all()), f"{n.name}: a dead channel is not zero"
        return result


def state_of(wrapped: Wrapped) -> dict[str, Any]:
    """All that must not change where nothing was meant to."""
    own = {
        "progress": wrapped.progress, "hardened": wrapped.hardened, "masks": wrapped.masks().tolist(),
        "cost": wrapped.cost(), "noise": wrapped.bank.noise, "schedule": wrapped.pressure.schedule,
        "target": wrapped.target.limits, "gates": {name: gate.mask.tolist() for name, gate in wrapped.gates.items()},
    }  # fmt: skip
    return {**own, **snapshot(wrapped)}


def snapshot(net: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {f"state {name}": value.clone() for name, value in net.state_dict().items()}
    found |= {f"grad {name}": parameter.requires_grad for name, parameter in net.named_parameters()}
    # A slim or wrapped net has no module for what the graph does by itself.
    found |= {f"mode {name}": module.training for name, module in net.named_modules()}
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other), set(one) ^ set(other)
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, f"{name} was {value} and is {other[name]}"
