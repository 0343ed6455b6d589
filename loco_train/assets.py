"""Finds the folders that travel with the package: configs/ and launchers/, in a checkout or in a wheel."""

from __future__ import annotations

from pathlib import Path

from loco_train.errors import EnvironmentProblem

_PACKAGE = Path(__file__).parent


def shared_folder(name: str) -> Path:
    """The folder `configs` or `launchers`: of the checkout this code lies in, else of the installed package.

    Raises:
        EnvironmentProblem: neither is there.
    """
    candidates = (_PACKAGE.parent / name, _PACKAGE / "_share" / name)
    is_checkout = (_PACKAGE.parent / "setup.py").is_file()
    for folder in candidates if is_checkout else candidates[1:]:
        if folder.is_dir():
            return folder
    raise EnvironmentProblem(f"the folder {name}/ of loco-train is missing", fix="install the package again")
