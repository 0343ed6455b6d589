"""The base of all settings, and the types that they share."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Base: unknown keys are refused, values are not coerced beyond what YAML leaves open, nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python's True is the number 1: `rounds: true` would be a run of one round.
        if isinstance(value, bool) and not _takes_bool(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(f"cannot be {str(value).lower()}: it is no switch")
        return value


def _takes_bool(annotation: Any) -> bool:
    return annotation is bool or any(map(_takes_bool, get_args(annotation)))


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
