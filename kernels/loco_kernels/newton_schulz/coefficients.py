"""Sets of odd polynomials whose composition carries all singular values in (0, 1] towards 1."""

from __future__ import annotations

# (a, b, c) of X <- a X + (b A + c A^2) X with A = X X^T.
Step = tuple[float, float, float]
Steps = tuple[Step, ...]


def _safe(steps: Steps) -> Steps:
    """p(x / 1.01) for each p(x): these polynomials leave every bound right behind their interval's end, where rounding
    may carry a singular value. Without it, 1 + 1e-4 comes out of the five of CANS as 3e4."""
    return tuple((a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in steps)


# arXiv 2607.03011, section 3, fast mode. Singular values from 0.01 of the Frobenius norm on land in [0.977, 1.032],
# from 0.002 on in [0.852, 1.146].
_ISO = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# arXiv 2505.16932: the best five of degree five for singular values from 0.001 on, which land in [0.846, 1.124].
_POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
# arXiv 2506.10935, by the Remez algorithm, for the same: [0.856, 1.114]. The digits are those of NVIDIA's
# Emerging-Optimizers.
_CANS = (
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
)
COEFFICIENTS: dict[str, Steps] = {"iso": _ISO, "polar-express": _safe(_POLAR_EXPRESS), "cans": _safe(_CANS)}
