"""Wheel and sdist build, hold what they should, and work in a fresh environment, away from this checkout.

Nothing is downloaded: no build isolation, no dependencies, and torch is the one that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import fxprune

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
pytestmark = pytest.mark.packaging
PROGRAM = """
import torch, fxprune
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
slim = fxprune.export(fxprune.wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8)))
fxprune.save(slim, "slim")
print(fxprune.__file__, slim.report.after["volume"] <= slim.report.before["volume"] / 2)
"""


def run(*command: object, cwd: Path) -> str:
    """Without this checkout on the path."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=plain, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(name: str) -> bool:
    """Without looking for the module: setuptools then exchanges distutils, and warns if somebody has it already."""
    return any(metadata.distributions(name=name))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packed: building leaves files in the folder."""
    copy = tmp_path_factory.mktemp("packaging") / "checkout"
    shutil.copytree(ROOT / "fxprune", copy / "fxprune", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    if not installed("setuptools") or not installed("pip"):
        pytest.skip("building without isolation needs pip and setuptools")
    run(*PIP, "wheel", ".", "--no-deps", "--no-build-isolation", "-w", "dist", cwd=checkout)
    (found,) = (checkout / "dist").glob("*.whl")
    return found


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "fxprune").rglob("*.py")}
    files = ("page.html.j2", "graph.svg.j2", "page.css", "page.js")
    data = {"fxprune/py.typed", *(f"fxprune/report/{name}" for name in files)}
    assert sources | data == {name for name in names if ".dist-info/" not in name}


def test_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    said = archive.read(name).decode()
    assert f"Version: {fxprune.__version__}\n" in said
    for extra in ("plots", "onnx", "lightning", "demo", "pictures", "docs", "dev"):
        assert f"Provides-Extra: {extra}\n" in said
    needed = [line for line in said.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert [line.split()[1].partition(">")[0] for line in needed] == ["torch", "networkx", "numpy", "rich", "jinja2"]


def test_installed_wheel_works(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    home = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # torch and its friends, after what is installed here; as a path only, so that no editable install is found in it.
    shared = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    (home / "shared.pth").write_text("\n".join(shared) + "\n")
    assert run(python.parent / "fxprune", "--version", cwd=tmp_path).strip() == f"fxprune {fxprune.__version__}"
    where, fits = run(python, "-c", PROGRAM, cwd=tmp_path).split()
    assert Path(where).is_relative_to(tmp_path) and fits == "True"
    assert (tmp_path / "slim" / "model.py").is_file()


def test_sdist_builds_and_can_be_built_from(checkout: Path) -> None:
    if not installed("build") or not installed("setuptools"):
        pytest.skip("needs build and setuptools")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "built", cwd=checkout)  # the wheel is made from it
    (archive,) = (checkout / "built").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "README.md", "setup.cfg", "pyproject.toml", "fxprune/py.typed", "fxprune/cli.py"} <= names
    assert len(list((checkout / "built").glob("*.whl"))) == 1
