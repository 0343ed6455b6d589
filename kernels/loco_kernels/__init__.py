"""Operations of the outer step's hot path, one folder each; imports no loco_train."""

from loco_kernels.outer_step import outer_step as outer_step
from loco_kernels.pseudo_gradient import pseudo_gradient as pseudo_gradient
