"""Generalised linear models that share their inputs, plain and normalised, in float64: the paper's geometry (section
5.2, eq. 8-14 and 32-35) against their exact Fisher information.

The log-likelihood of output i given x is ((a_i + b_i) y_i - eta(a_i + b_i)) / phi + c(y_i, phi), where a_i is
w_i x, or its normalised form g_i (w_i x - mu_i) / sigma_i. The mean is f = eta', the variance phi f'. There is no
epsilon: it is the paper's formula. Matrices are (parameters, parameters); expectations are means over the cases.

Longer weights learn more slowly (section 5.2.2): a normalised model does not see the length of its weights W. So the
gradient is at right angles to W, and every step of gradient descent makes W longer, by
|W'|^2 = |W|^2 + rate^2 |gradient|^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np

from duoln import Stream, ops
from duoln.backends.protocol import Backend
from duoln.core import Tensor, value_and_grad, vjp
from duoln.plugins.theory import report
from duoln.plugins.theory.report import Report, Statement, most, relative, tensor

Norm = Literal["none", "batch", "weight", "layer"]
NORMS: tuple[Norm, ...] = get_args(Norm)
CASES = 500
CORRELATION = 0.5
"""The correlation of the outputs for blocks of two outputs; for independent outputs these blocks are zero."""
DIRECTIONS = 5
_BATCH, _UPDATES, _RATE = 50, 200, 0.5


class Family(NamedTuple):
    """An exponential family: its eta, f = eta', f' and the dispersion phi."""

    log_partition: Callable[[np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    dispersion: float


def _sigmoid(s: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * s))


LOGISTIC = Family(lambda s: np.logaddexp(0.0, s), _sigmoid, lambda s: _sigmoid(s) * _sigmoid(-s), 1.0)
GAUSSIAN = Family(lambda s: 0.5 * s * s, lambda s: s, np.ones_like, 0.5)
FAMILIES = {"logistic": LOGISTIC, "gaussian": GAUSSIAN, "poisson": Family(np.exp, np.exp, np.exp, 1.0)}


class Glm(NamedTuple):
    """Models that share x (cases, inputs): weight (inputs, outputs), gain and bias (outputs,), all float64.

    A parameter vector has (w_i, b_i, g_i) for each output i in turn; the plain model, without a gain, (w_i, b_i).
    """

    norm: Norm
    x: np.ndarray
    weight: np.ndarray
    gain: np.ndarray
    bias: np.ndarray

    @property
    def inputs(self) -> int:
        return len(self.weight)

    @property
    def outputs(self) -> int:
        return len(self.gain)

    @property
    def width(self) -> int:
        """Parameters of one output."""
        return self.inputs + (1 if self.norm == "none" else 2)

    def moved(self, change: np.ndarray) -> Glm:
        """The model after a change of its parameters, a vector."""
        parts = change.reshape(self.outputs, self.width)
        gain = self.gain if self.norm == "none" else self.gain + parts[:, -1]
        return self._replace(weight=self.weight + parts[:, :self.inputs].T, bias=self.bias + parts[:, self.inputs],
                             gain=gain)


def random_glm(norm: Norm, seed: int, cases: int, inputs: int = 4, outputs: int = 3) -> Glm:
    """A model and data from a seed: inputs with means of their own, gains of 0.5 to 1.5."""
    rng = Stream(seed, "geometry")
    x = rng.gaussian((cases, inputs)) + 0.5 * rng.gaussian((inputs,))
    return Glm(norm, x, rng.gaussian((inputs, outputs)), 0.5 + rng.uniform((outputs,)), 0.5 * rng.gaussian((outputs,)))


def predict(norm: Norm, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """The natural parameters a + b, (cases, outputs), by our operators."""
    if norm == "none":
        return ops.linear(x, weight, bias)
    if norm == "weight":
        return ops.linear(x, ops.weight_norm(weight, gain), bias)
    summed = ops.matmul(x, weight)
    if norm == "batch":
        return ops.batch_norm(summed, gain, bias, eps=0.0)[0]
    return ops.layer_norm(summed, gain, bias, eps=0.0)


def predictor(glm: Glm, backend: Backend) -> np.ndarray:
    """The natural parameters of a model on its data, (cases, outputs)."""
    return predict(glm.norm, *(tensor(a, backend) for a in glm[1:])).numpy()


def jacobian(glm: Glm, backend: Backend) -> np.ndarray:
    """Derivatives of every natural parameter by every parameter: (cases, outputs, parameters).

    One walk back for each natural parameter; the formulas of the derivatives are not used.
    """
    x = tensor(glm.x, backend)
    out, back = vjp(lambda *params: predict(glm.norm, x, *params), *(tensor(a, backend) for a in glm[2:]))
    rows, seed = np.zeros((*out.shape, glm.outputs, glm.width)), np.zeros(out.shape)
    for case, output in np.ndindex(out.shape):
        seed[case, output] = 1.0
        weight, gain, bias = back(tensor(seed, backend))
        seed[case, output] = 0.0
        rows[case, output, :, :glm.inputs] = weight.numpy().T
        rows[case, output, :, glm.inputs] = bias.numpy()
        if glm.norm != "none":
            rows[case, output, :, -1] = gain.numpy()
    return rows.reshape(*out.shape, -1)


def covariance(family: Family, natural: np.ndarray, correlation: float = 0.0) -> np.ndarray:
    """Cov[y | x], (cases, outputs, outputs), from the natural parameters (cases, outputs).

    Independent outputs, as the paper has them, have a diagonal one; a correlation between -1/(outputs - 1) and 1
    shows what eq. 13 says of the other blocks.
    """
    deviation = np.sqrt(family.dispersion * family.slope(natural))
    mixed = (1.0 - correlation) * np.eye(natural.shape[1]) + correlation
    return deviation[:, :, None] * deviation[:, None, :] * mixed


class Exact(NamedTuple):
    """A model, with the derivatives by its parameters and the natural parameters of its data."""

    glm: Glm
    rows: np.ndarray
    natural: np.ndarray

    def fisher(self, family: Family, correlation: float = 0.0) -> np.ndarray:
        """The exact Fisher information: E[J' Cov J] / phi^2, the covariance of the score J' (y - f) / phi."""
        cases, outputs, parameters = self.rows.shape
        covariances = covariance(family, self.natural, correlation)
        weighted = np.matmul(covariances, self.rows).reshape(cases * outputs, parameters)
        result: np.ndarray = self.rows.reshape(cases * outputs, parameters).T @ weighted / (
            cases * family.dispersion**2)
        return result


def exact(glm: Glm, backend: Backend) -> Exact:
    """A model's exact derivatives."""
    return Exact(glm, jacobian(glm, backend), predictor(glm, backend))


def normalised(glm: Glm) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(a - mu) / sigma and sigma, and the derivatives of mu_i and sigma_i by w_i, for the paper's chi (eq. 14).

    Layer norm's are by each output's own weights only, as the paper has them.

    Shape:
        -> (cases, outputs) twice, (cases, outputs, inputs) twice.
    """
    summed = glm.x @ glm.weight
    shape = (*summed.shape, glm.inputs)
    if glm.norm == "weight":
        sigma = np.broadcast_to(np.linalg.norm(glm.weight, axis=0), summed.shape)
        return summed / sigma, sigma, np.zeros(shape), np.broadcast_to(glm.weight.T / sigma[0][:, None], shape)
    axis = {"batch": 0, "layer": 1}[glm.norm]
    sigma = np.broadcast_to(summed.std(axis=axis, keepdims=True), summed.shape)
    unit = (summed - summed.mean(axis=axis, keepdims=True)) / sigma
    if glm.norm == "layer":
        x = np.broadcast_to(glm.x[:, None, :], shape)
        return unit, sigma, x / glm.outputs, x * unit[:, :, None] / glm.outputs
    centre = glm.x.mean(axis=0)
    along = unit.T @ (glm.x - centre) / len(glm.x)
    return unit, sigma, np.broadcast_to(centre, shape), np.broadcast_to(along, shape)


def magnitudes(glm: Glm) -> np.ndarray:
    """For each output the direction in which the magnitude of its weights alone changes: (outputs, parameters).

    It is the gain of a normalised model, and w_i / |w_i| in the plain one.
    """
    along = np.zeros((glm.outputs, glm.outputs, glm.width))
    each = np.arange(glm.outputs)
    if glm.norm == "none":
        along[each, each, :glm.inputs] = (glm.weight / np.linalg.norm(glm.weight, axis=0)).T
    else:
        along[each, each, -1] = 1.0
    return along.reshape(glm.outputs, -1)


def paper_vectors(glm: Glm) -> np.ndarray:
    """v_i = ((g_i / sigma_i) chi_i, 1, (a_i - mu_i) / sigma_i) of eq. 13-14, or (x, 1) of eq. 12.

    chi_i = x - d mu_i / d w_i - (a_i - mu_i) / sigma_i d sigma_i / d w_i.

    Shape:
        -> (cases, outputs, width).
    """
    if glm.norm == "none":
        own = np.concatenate((glm.x, np.ones((len(glm.x), 1))), axis=1)
        return np.repeat(own[:, None, :], glm.outputs, axis=1)
    unit, sigma, of_mean, of_sigma = normalised(glm)
    chi = glm.x[:, None, :] - of_mean - unit[:, :, None] * of_sigma
    scaled = (glm.gain / sigma)[:, :, None] * chi
    return np.concatenate((scaled, np.ones((*unit.shape, 1)), unit[:, :, None]), axis=2)


def paper_fisher(family: Family, glm: Glm, natural: np.ndarray) -> np.ndarray:
    """Eq. 12, or 13 of a normalised model: the block of outputs i and j is E[Cov(y_i, y_j | x) v_i v_j'] / phi^2."""
    vectors = paper_vectors(glm)
    blocks = np.einsum("nij,nip,njq->ipjq", covariance(family, natural), vectors, vectors, optimize=True)
    size = glm.outputs * glm.width
    array: np.ndarray = blocks.reshape(size, size) / (len(glm.x) * family.dispersion**2)
    return array


def layer_norm_jacobian(glm: Glm) -> np.ndarray:
    """The Jacobian of layer norm. Eq. 13 leaves out that all outputs share mu and sigma, so w_i moves every output k.

    d a_k / d w_i = (g_k / sigma) x ([k = i] - 1 / H - u_k u_i / H) with u = (a - mu) / sigma and H outputs.

    Shape:
        -> (cases, outputs k, parameters), as `jacobian`.
    """
    unit, sigma, _, _ = normalised(glm)
    outputs = glm.outputs
    shared = np.eye(outputs) - 1.0 / outputs - unit[:, :, None] * unit[:, None, :] / outputs
    rows = np.zeros((len(unit), outputs, outputs, glm.width))
    rows[..., :glm.inputs] = ((glm.gain / sigma)[:, :, None] * shared)[..., None] * glm.x[:, None, None, :]
    each = np.arange(outputs)
    rows[:, each, each, glm.inputs] = 1.0
    rows[:, each, each, -1] = unit
    return rows.reshape(len(unit), outputs, -1)


def divergence(family: Family, before: np.ndarray, after: np.ndarray) -> float:
    """E[KL(p(y | before) || p(y | after))] in nats, from natural parameters (cases, outputs); outputs independent.

    [eta(after) - eta(before) - f(before) (after - before)] / phi, summed over outputs.
    """
    gap = family.log_partition(after) - family.log_partition(before) - family.mean(before) * (after - before)
    return float(gap.sum(axis=1).mean() / family.dispersion)


# Statements -----------------------------------------------------------------------------------------------

def measure(backend: Backend, seed: int = 0) -> Report:
    """Every statement, in the order of the paper's equations, on models of three outputs that share four inputs.

    Args:
        backend: where the operators run, in float64.
        seed: of weights, data and directions.

    Raises:
        BackendError: a backend without float64.
    """
    report.check_float64("geometry", backend)
    models = {norm: exact(random_glm(norm, seed, CASES), backend) for norm in NORMS}
    blocks = list(_blocks(models))
    batch, weight = (blocks[k].error for k in (1, 2))
    summary = (f"eq. 13: exact for batch norm ({batch:.0e}) and weight norm ({weight:.0e}); "
               f"{_block_errors(models['layer'], LOGISTIC)[0]:.0%} off for layer norm's blocks of weights (logistic)")
    return report.of_statements("The paper's statements, and their relative errors", summary, [
        *_curvature(models, seed, backend), *blocks, *_lengths(models, backend), *_growth(models, seed, backend),
        *_gains(models), *_directions(models["none"])])


def _curvature(models: Mapping[Norm, Exact], seed: int, backend: Backend) -> Iterator[Statement]:
    """Eq. 8."""
    def missed(model: Exact, form: np.ndarray, length: float) -> float:
        """The greatest relative error of a quadratic form for steps of a length."""
        rng, errors = Stream(seed, "geometry.step"), []
        for _ in range(DIRECTIONS):
            change = rng.gaussian((len(form),))
            change *= length / np.linalg.norm(change)
            nats = divergence(LOGISTIC, model.natural, predictor(model.glm.moved(change), backend))
            errors.append(abs(0.5 * change @ form @ change - nats) / nats)
        return most(errors)

    forms = [(model, model.fisher(LOGISTIC)) for model in models.values()]
    yield Statement("eq. 8", "KL is the quadratic form for short steps: a tenth of a step has this share of its error",
                    True, most(missed(*form, 0.001) / missed(*form, 0.01) for form in forms), report.SHORT)
    layer = models["layer"]
    yield Statement("eq. 8", "the same with eq. 13 for layer norm: the error at 0.001", False,
                    missed(layer, paper_fisher(LOGISTIC, layer.glm, layer.natural), 0.001))


def _block_errors(model: Exact, family: Family) -> tuple[float, float, float]:
    """Eq. 12 or 13, by the Frobenius norms of blocks: of weights, of weights with the others, of the others."""
    full, paper = model.fisher(family), paper_fisher(family, model.glm, model.natural)
    weights = np.arange(len(full)) % model.glm.width < model.glm.inputs
    own, cross, rest = np.ix_(weights, weights), np.ix_(weights, ~weights), np.ix_(~weights, ~weights)
    size, size_of_rest, gap = np.linalg.norm(full[own]), np.linalg.norm(full[rest]), full - paper
    return (float(np.linalg.norm(gap[own]) / size), float(np.linalg.norm(gap[cross]) / np.sqrt(size * size_of_rest)),
            float(np.linalg.norm(gap[rest]) / size_of_rest))


def _blocks(models: Mapping[Norm, Exact]) -> Iterator[Statement]:
    by_norm = {norm: np.array([_block_errors(model, family) for family in FAMILIES.values()])
               for norm, model in models.items()}
    weights, cross, rest = by_norm["layer"].T
    yield Statement("eq. 12", "plain model, all blocks", True, most(by_norm["none"].flat))
    yield Statement("eq. 13", "batch norm, all blocks", True, most(by_norm["batch"].flat))
    yield Statement("eq. 13", "weight norm, all blocks", True, most(by_norm["weight"].flat))
    yield Statement("eq. 13", "layer norm, blocks of gains and biases", True, most(rest))
    yield Statement("eq. 13", "layer norm, blocks of weights: outputs share mu and sigma, so w_i moves them all", False,
                    float(weights.min()))
    yield Statement("eq. 13", "layer norm, blocks of weights with gains or biases", False, float(cross.min()))
    yield Statement("instead", "layer norm: d a_k / d w_i = g_k/sigma x ([k=i] - 1/H - u_k u_i/H), u = (a - mu)/sigma",
                    True, relative(layer_norm_jacobian(models["layer"].glm), models["layer"].rows))


def _lengths(models: Mapping[Norm, Exact], backend: Backend) -> Iterator[Statement]:
    """Doubled weights, of the first output or of all: the output, and blocks of w_1; logistic, outputs correlated."""
    def ratios(before: Exact, after: Exact) -> tuple[float, ...]:
        """By least squares the blocks of w_1 with w_1, b_1, g_1 and w_2 after a change, by those before."""
        first, second = slice(0, before.glm.inputs), slice(before.glm.width, before.glm.width + before.glm.inputs)
        bias, gain = (slice(k, k + 1) for k in (before.glm.inputs, before.glm.inputs + 1))
        both = [model.fisher(LOGISTIC, CORRELATION)[first] for model in (before, after)]
        return tuple(float(np.sum(old * new) / np.sum(old * old)) for old, new in (
            [rows[:, columns] for rows in both] for columns in (first, bias, gain, second)))

    def doubled(norm: Norm, *factors: float) -> Exact:
        glm = models[norm].glm
        return exact(glm._replace(weight=glm.weight * factors), backend)

    norms: tuple[Norm, ...] = ("batch", "weight")
    own, *others = zip(*(ratios(models[norm], doubled(norm, 2.0, 1.0, 1.0)) for norm in norms), strict=True)
    layer = models["layer"]
    whole = doubled("layer", 2.0, 2.0, 2.0)
    of_whole = ratios(layer, whole)
    yield Statement("5.2.2", "batch and weight norm: |w_i| doubled, the curvature along w_i halves", False,
                    float(np.min([abs(r - 0.5) / 0.5 for r in own])))
    yield Statement("instead", "it falls to a quarter", True, most(abs(r - 0.25) / 0.25 for r in own))
    yield Statement("5.2.2", "what halves are the blocks of w_i with b_i, g_i and w_j", True,
                    most(abs(r - 0.5) / 0.5 for of_norms in others for r in of_norms))
    yield Statement("5.2.2", "layer norm: |w_i| doubled, the output stays", False,
                    relative(doubled("layer", 2.0, 1.0, 1.0).natural, layer.natural))
    yield Statement("instead", "the whole W doubled: it stays, and all blocks of weights fall to a quarter", True,
                    most((relative(whole.natural, layer.natural), *(abs(of_whole[k] - 0.25) / 0.25 for k in (0, 3)))))


def _growth(models: Mapping[Norm, Exact], seed: int, backend: Backend) -> Iterator[Statement]:
    along, squares = zip(*(descend(model.glm, seed, backend) for norm, model in models.items() if norm != "none"),
                         strict=True)
    yield Statement("5.2.2", "normalised models: the gradient is at right angles to W", True, most(along))
    yield Statement("5.2.2", "and |W|^2 grows by the squares of the updates", True, most(squares))


def descend(glm: Glm, seed: int, backend: Backend) -> tuple[float, float]:
    """Gradient descent on batches, from weights of length 1; labels are those of a plain model, gain and bias stay.

    Returns:
        The greatest part of a gradient along W, by the greatest gradient, and the relative error of |W|^2 from the sum
        of the squared updates.
    """
    rng = Stream(seed, "growth.descent")
    teacher = rng.gaussian(glm.weight.shape)
    labels = (rng.uniform((len(glm.x), glm.outputs)) < LOGISTIC.mean(glm.x @ teacher)).astype(np.float64)
    gain, bias = tensor(glm.gain, backend), tensor(glm.bias, backend)

    def loss(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return ops.mean(ops.sum(ops.bce_with_logits(predict(glm.norm, x, weight, gain, bias), y), axis=1))

    gradient_of = value_and_grad(loss)
    weight = glm.weight / np.linalg.norm(glm.weight)
    along, lengths, squares = [], [], float(np.sum(weight**2))
    size = min(_BATCH, len(glm.x) // 2)
    for _ in range(_UPDATES):
        rows = rng.permutation(len(glm.x))[:size]
        gradient = gradient_of(*(tensor(a, backend) for a in (weight, glm.x[rows], labels[rows])))[1].numpy()
        along.append(abs(np.sum(weight * gradient)) / float(np.linalg.norm(weight)))
        lengths.append(np.linalg.norm(gradient))
        weight -= _RATE * gradient
        squares += float(np.sum((_RATE * gradient) ** 2))
    return float(np.max(along) / np.max(lengths)), abs(float(np.sum(weight**2)) - squares) / squares


def _gains(models: Mapping[Norm, Exact]) -> Iterator[Statement]:
    """Eq. 32 (batch), 33 (layer) and 34 (weight norm): the gains alone move."""
    def error(norm: Norm, family: Family, correlation: float = 0.0) -> float:
        glm, _, natural = model = models[norm]
        at = np.arange(glm.outputs) * glm.width + glm.width - 1
        unit = np.ones_like(natural) if norm == "batch" else normalised(glm)[0]  # eq. 32 has no (a - mu) / sigma
        printed = np.einsum("nij,ni,nj->ij", covariance(family, natural, correlation), unit, unit)
        return relative(printed / (len(unit) * family.dispersion**2),
                        model.fisher(family, correlation)[np.ix_(at, at)])

    yield Statement("eq. 32", "batch norm's gains, Cov[y|x] varies with x (logistic)", False, error("batch", LOGISTIC))
    yield Statement("eq. 32", "the same, Cov[y|x] constant (Gaussian), independent outputs", True,
                    error("batch", GAUSSIAN))
    yield Statement("eq. 32", "the same, correlated outputs", False, error("batch", GAUSSIAN, CORRELATION))
    norms: tuple[tuple[str, Norm], ...] = (("33", "layer"), ("34", "weight"))
    for equation, norm in norms:
        yield Statement(f"eq. {equation}", f"{norm} norm's gains", True, most(
            error(norm, family, correlation) for family in FAMILIES.values() for correlation in (0.0, CORRELATION)))


def _directions(plain: Exact) -> Iterator[Statement]:
    """Eq. 35, the plain model moved along w_i / |w_i| and w_j / |w_j|; logistic, outputs correlated.

    The right side is one term, of the pair (i, j). The left side, as printed, is the quadratic form of both changes
    together: the terms ii, ij, ji and jj.
    """
    form, along = plain.fisher(LOGISTIC, CORRELATION), magnitudes(plain.glm)
    summed = plain.glm.x @ plain.glm.weight / np.linalg.norm(plain.glm.weight, axis=0)
    right = np.einsum("nij,ni,nj->ij", covariance(LOGISTIC, plain.natural, CORRELATION), summed, summed) / len(summed)
    both = along[0] + along[1]
    yield Statement("eq. 35", "plain model along w_i and w_j: the term (i, j)", True,
                    relative(right, along @ form @ along.T))
    yield Statement("eq. 35", "the left side as printed, which is four terms", False,
                    relative(right[0, 1], both @ form @ both))
