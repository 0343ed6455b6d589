"""Packages, console command, and configs/ and launchers/ copied into the package as loco_train/_share."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "loco_train/__init__.py").read_text()).group(1)


class BuildWithShare(build_py):
    """Configs and launchers travel inside the wheel; in a checkout assets.py finds them at the top level."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("configs", "launchers"):
            shutil.copytree(ROOT / name, Path(self.build_lib) / "loco_train/_share" / name, dirs_exist_ok=True)


setup(
    name="loco-train",
    version=VERSION,
    description="Pretraining of language models over islands of compute joined by slow links",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    # `kernels` is no import package: that name is Hugging Face's, and find_packages() would overwrite their files.
    packages=find_packages(include=["loco_train", "loco_train.*"])
    + [f"loco_kernels{'.' if p else ''}{p}" for p in ["", *find_packages("kernels/loco_kernels")]],
    package_dir={"loco_kernels": "kernels/loco_kernels"},
    package_data={"loco_train": ["py.typed"]},
    install_requires=[
        "torch>=2.13,<2.14",
        "deepspeed>=0.19.8,<0.20",
        "megatron-core>=0.16.1,<0.17",
        "numpy",
        "sentencepiece",
        "protobuf",
        "transformers>=5",
        "safetensors",
        "pydantic>=2",
        "pyyaml",
        "rich",
        "typer",
        "tensorboard",
        "pyarrow",
        "zstandard",
        "matplotlib",
    ],
    extras_require={"dev": ["pytest", "pytest-timeout", "ruff", "mypy", "types-PyYAML", "build"]},
    entry_points={"console_scripts": ["loco = loco_train.cli.main:main"]},
    cmdclass={"build_py": BuildWithShare},
)
