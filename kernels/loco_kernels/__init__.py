"""Fused kernels of the outer step; imports no loco_train."""
