"""What an installation holds: from a wheel and editable, with configs found, and no package called `kernels`."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHERE = """
import importlib.util, json, pathlib
import loco_train, loco_kernels
from loco_train.assets import shared_folder
from loco_train.config import load_run
spec = importlib.util.find_spec("kernels")
print(json.dumps({
    "loco_train": loco_train.__file__, "loco_kernels": loco_kernels.__file__,
    "configs": str(shared_folder("configs")), "launchers": str(shared_folder("launchers")),
    "rounds": load_run("quickstart", ["rounds=3"]).config.rounds,
}))
"""


def run(*command: object, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**environment, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: object, cwd: Path, python: Path | None = None) -> None:
    """pip, which builds with the setuptools that is here where that is new enough, else with one of its own."""
    have = importlib.util.find_spec("setuptools") is not None
    if have:
        import setuptools

        have = int(setuptools.__version__.split(".")[0]) >= 77
    choose = ["--python", python] if python else []
    common = ["--no-deps", "--quiet", "--disable-pip-version-check", *(["--no-build-isolation"] if have else [])]
    run(sys.executable, "-m", "pip", *choose, arguments[0], *common, *arguments[1:], cwd=cwd)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy, because building leaves files in the tree; its path has a space."""
    copy = tmp_path_factory.mktemp("a checkout")
    for name in ("loco_train", "kernels", "configs", "launchers"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--wheel-dir", folder, checkout, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_two_packages_and_what_they_share(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"loco_train", "loco_kernels"}
    for folder in ("configs", "launchers"):
        sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert {f"loco_train/_share/{name}" for name in sources} <= set(names)
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "loco_train").rglob("*.py")}
    assert modules <= set(names)
    assert "loco_train/py.typed" in names
    kernels = {p.relative_to(ROOT / "kernels").as_posix() for p in (ROOT / "kernels/loco_kernels").rglob("*.py")}
    assert kernels <= set(names)


def test_an_installed_wheel_finds_its_configs(wheel, tmp_path):
    site = tmp_path / "site"
    pip("install", "--target", site, wheel, cwd=tmp_path)
    found = eval(run(sys.executable, "-c", WHERE, cwd=tmp_path, PYTHONPATH=str(site)))
    assert found["rounds"] == 3
    assert found["configs"] == str(site / "loco_train/_share/configs")
    assert found["launchers"] == str(site / "loco_train/_share/launchers")
    assert found["loco_kernels"] == str(site / "loco_kernels/__init__.py")


def test_an_editable_install_finds_the_checkouts_configs(checkout, tmp_path):
    environment = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # The dependencies of this environment, without its own .pth files and so without its own loco_train.
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(here) + "\n")
    pip("install", "--editable", checkout, cwd=tmp_path, python=python)
    found = eval(run(python, "-c", WHERE, cwd=tmp_path))
    assert found["loco_train"] == str(checkout / "loco_train/__init__.py")
    assert found["configs"] == str(checkout / "configs")
    assert found["loco_kernels"] == str(checkout / "kernels/loco_kernels/__init__.py")
    assert "two islands" in run(environment / "bin/loco", "--help", cwd=tmp_path)


def test_the_folder_kernels_does_not_shadow_hugging_faces_package():
    # transformers looks up a package `kernels`; from the top of the checkout it would find a folder of that name.
    assert not (ROOT / "kernels/__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))
    program = "from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)"
    assert run(sys.executable, "-c", program, cwd=ROOT, PYTHONPATH=str(ROOT)).strip() == "LlamaForCausalLM"
