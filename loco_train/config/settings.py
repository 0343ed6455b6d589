"""The base of all settings, and the types that they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Base: unknown keys are refused, values are not coerced beyond what YAML leaves open, nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
