"""Names of PyTorch, NumPy, JAX or an earlier duoln, with duoln's way of doing the same: the end of errors.

What stands between backticks is a line of code; the tests run each beside PyTorch's. In them `x` and `y` are tensors.

Modules look a name up here when they lack it. Classes get a descriptor for each name, because a `__getattr__` of the
class would make every access to their attributes slower.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from importlib.resources import files
from typing import Any, Never, ParamSpec, TypeVar

from duoln.core.arguments import did_you_mean
from duoln.errors import DtypeError

P = ParamSpec("P")
R = TypeVar("R")
_CELL, _QUOTED = re.compile(r"(?<!\\)\|"), re.compile(r"`([^`]+)`")

_GRADIENT = "`value, gradients = duoln.value_and_grad(loss)(params, x)` computes a gradient"
_UPDATE = "`params, slots = optimizer.update(params, gradients, slots)` makes an update"
_PARAMS = "a module holds no parameters: `params = duoln.init(model, 0)` makes them"
_ONE_BACKEND = "a tensor stays where it was made: `duoln.tensor(x, \"cupy\")`, `duoln.to_tensors(params, \"cupy\")`"
_NO_MODE = ("a module has no mode; `nn.with_population(model, params, batches)` serves batch norm, and "
            "`nn.DropoutMasks(model, seed=0)` makes the masks of dropout for a training batch")
_NO_CONTEXT = "only what runs inside `duoln.value_and_grad(loss)(params, x)` is recorded, so no such context is needed"
_MEAN = "; without ops.mean, a loss for each example"
_CROSS_ENTROPY = f"`ops.mean(ops.softmax_cross_entropy(logits, labels))`{_MEAN}"
_OF_LOGS = f"`ops.mean(ops.softmax_cross_entropy(log_probabilities, labels))`, or of logits{_MEAN}"
_BINARY = f"`ops.mean(ops.bce_with_logits(logits, targets))`{_MEAN}"
_SEED = "each stream of random numbers has its own seed: `model.init(0)`, `duoln.Stream(0, \"noise\")`"
_DRAWN = "`duoln.tensor(duoln.Stream(0, \"noise\").{draw}((4, 6)), dtype=\"float32\")`"
_RATE = ("`optim.Adam(optim.steps(1e-3, 0.5, every=100, times=5))` has a learning rate for each update; cosine, "
         "exponential, linear_warmup, piecewise and schedule are others")
_DROPOUT = "`nn.Dropout(0.5)` is a layer, whose masks `nn.DropoutMasks(model, seed=0)` makes for a batch"
_OWN = ("`def weights(self, rng): return {\"w\": np.zeros(3, np.float32)}` gives a module arrays of its own, which its "
        "__call__ gets in params")
_CONSTANT = "a constant is a NumPy array, `self.scale = np.ones(3, np.float32)`, of which __call__ makes a tensor"
_IMMUTABLE = "a tensor is immutable: "
_NONE = "there is none"
_ARRAY = "`duoln.tensor(values)` takes lists, numbers and NumPy arrays"
_SORTED = "duoln.tensor(np.argsort({x}, axis=-1){k}, x.backend)"
_HOST = "the host does it: "
_LOOP = "a loop of Python's, which `duoln.compile(step)` unrolls"
_FIRST_ORDER = "gradients are of first order; `duoln.value_and_grad(loss)(params, x)` computes them"
_STEP_OF_ITS_OWN = "there is none; `optim.AdamW(1e-3)` and `optim.SGD(0.1, momentum=0.9, nesterov=True)` are near"

_16_BITS = "`nn.in_16_bits(params, \"float16\")` rounds the weights, inside the loss"
OF_DUOLN = {
    "no_grad": _NO_CONTEXT, "inference_mode": _NO_CONTEXT, "enable_grad": _NO_CONTEXT, "manual_seed": _SEED,
    "grad": _GRADIENT, "autograd": _GRADIENT, "from_numpy": "`duoln.tensor(array)` takes NumPy arrays",
    **dict.fromkeys(("as_tensor", "array", "asarray"), _ARRAY), "cat": "`ops.concat(x, y, axis=0)`",
    "device": "`duoln.backend(\"cupy\")`, \"mlx\" or \"numpy\" is a device",
    "cuda": "`duoln.backend(\"cupy\")` is the GPU",
    "utils": "`duoln.data.Batches({\"x\": array}, 2, seed=0)` makes batches",
    "jit": "`duoln.compile(step)` compiles a step", "amp": _16_BITS, "autocast": _16_BITS,
    **{name: f"a dtype is a name: `duoln.tensor(array, dtype=\"{name}\")`"
       for name in ("float32", "float64", "float16", "bfloat16")},
    "set_default_dtype": "each tensor has a dtype of its own: `duoln.tensor(array, \"numpy\", \"float64\")`",
    **dict.fromkeys(("int32", "int64", "long"), "a dtype is a name: `duoln.tensor(indices, dtype=\"int32\")`"),
    "vmap": "operators take leading axes; `ops.stack(*[function(row) for row in x])` serves any function",
    "pmap": "duoln run --ranks N trains one model in N processes",
    **dict.fromkeys(("tree_map", "tree_util"), "`duoln.tree.map(function, params)`"),
    "tree_leaves": "`duoln.tree.leaves(params)`",
    "numpy": "functions are in duoln.ops: `ops.relu(x)`; NumPy's own take tensors, `np.median(x)`",
    **dict.fromkeys(("random", "PRNGKey", "Generator", "seed", "set_seed"), _SEED),
    **dict.fromkeys(("jacobian", "jacrev", "jacfwd", "hessian", "jvp"), _FIRST_ORDER),
    **dict.fromkeys(("device_put", "devices", "set_default_device"), _ONE_BACKEND),
    "is_tensor": "`isinstance(x, duoln.Tensor)`", "eval": "`x.numpy()` waits for the values",
    "lax": _LOOP, "checkpoint": "there is none: a gradient keeps what its operators need",
    "functional": "functions are in duoln.ops: `ops.relu(x)`",
}
OF_NN = {
    "Dense": "`nn.Linear(6, 3)`", "without_masks": "`with nn.no_dropout(): model(params, x)`",
    "ConvTranspose2d": _NONE, "Conv3d": _NONE, "CTCLoss": _NONE, "Unflatten": "`x.reshape(4, 2, 3)`",
    "AdaptiveAvgPool2d": "`ops.mean(images, axis=(1, 2))`, channels last, is that of size 1",
    "SmoothL1Loss": f"`ops.mean(ops.huber(predictions, targets))`{_MEAN}",
    "flatten": "`x.reshape(-1)`; the layer `nn.Flatten()` keeps the first axis",
    "ZeroPad2d": "`ops.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))`, channels last",
    "PReLU": "`nn.LeakyReLU(0.25)` has a fixed slope", "value_and_grad": _GRADIENT,
    "CosineSimilarity": "`ops.vecdot(x, y) / (ops.vector_norm(x, axis=-1) * ops.vector_norm(y, axis=-1))`",
    **dict.fromkeys(("Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"), "`nn.Dropout(0.5)` drops single values"),
    "CrossEntropyLoss": _CROSS_ENTROPY, "NLLLoss": _OF_LOGS, "BCEWithLogitsLoss": _BINARY,
    "BCELoss": f"{_BINARY}; logits are what went into the sigmoid",
    "MSELoss": f"`ops.mean(ops.squared_error(predictions, targets))`{_MEAN}",
    "L1Loss": f"`ops.mean(ops.absolute_error(predictions, targets))`{_MEAN}",
    "HuberLoss": f"`ops.mean(ops.huber(predictions, targets))`{_MEAN}",
    "KLDivLoss": f"`ops.mean(ops.kl_div(log_predictions, probabilities))`{_MEAN}",
    "BatchNorm1d": "`nn.BatchNorm(width)`", "BatchNorm2d": "`nn.BatchNorm(width)`, channels last",
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"),
                    "`nn.InstanceNorm(width, affine=False)`, channels last"),
    **{f"{kind}Pool{n}d": f"`ops.{kind.lower()}_pool{n}d({x}, size=2)`, channels last"
       for n, x in ((1, "sequence"), (2, "images")) for kind in ("Max", "Avg")},
    "Parameter": _OWN, "ModuleList": "`self.layers = layers` for a list of modules",
    "ModuleDict": "`self.layers = layers_by_name` for a dict of modules",
    "functional": OF_DUOLN["functional"],
    "utils": "`optim.Adam(1e-3, clip=optim.clip_global_norm(5.0))` clips gradients; recurrent layers take mask= for "
             "sequences of different lengths",
    "DataParallel": "duoln run --ranks N trains one model in N processes",
    "Bilinear": "`ops.einsum(\"bi,kij,bj->bk\", x, weight, y) + bias`",
    "MultiheadAttention": "`nn.MultiHeadAttention(width, heads)`, the batch first",
    "TransformerEncoderLayer": "`nn.TransformerBlock(width, heads, hidden, place=\"post\")`, the batch first",
}
_OF_BOTH = {
    "unsqueeze": "`ops.expand_dims(x, axis=0)`", "chunk": "`ops.split(x, 2, axis=0)` gives that many equal parts",
    "expand": "`ops.broadcast_to(row, (4, 6))`", "gather": "`ops.take_along_axis(x, indices, axis=1)`",
    "masked_fill": "`ops.where(mask, 0.0, x)`", "norm": "`ops.vector_norm(x)`",
    "permute": "`ops.permute_dims(x, axes=(1, 0))`", "transpose": "`ops.permute_dims(x, axes=(1, 0))`",
    "flatten": "`x.reshape(-1)`; `nn.Flatten()` keeps the first axis",
}
"""Names of functions, and of methods of tensors."""
OF_OPS = {
    **_OF_BOTH, "cat": "`ops.concat(x, y, axis=0)`", "cross_entropy": _CROSS_ENTROPY, "nll_loss": _OF_LOGS,
    "binary_cross_entropy_with_logits": _BINARY, "binary_cross_entropy": OF_NN["BCELoss"],
    "mm": "`ops.matmul(x, w)`", "bmm": "`ops.matmul(x, w)`", "view": "`ops.reshape(x, (2, 12))`",
    "index_select": "`ops.take(x, rows, axis=0)`", "tensor": "`duoln.tensor(values)`", "dropout": _DROPOUT,
    "power": "`ops.pow(x, 2.0)`", "cumsum": "`ops.cumulative_sum(x, axis=0)`",
    "repeat_interleave": "`ops.repeat(x, 2, axis=0)`",
    "argsort": f"{_HOST}`{_SORTED.format(x='x.numpy()', k='')}`",
    "sort": f"{_HOST}`ops.take_along_axis(x, {_SORTED.format(x='x.numpy()', k='')}, axis=-1)`",
    "topk": f"{_HOST}`ops.take_along_axis(x, {_SORTED.format(x='-x.numpy()', k='[:, :n]')}, axis=-1)`",
    **dict.fromkeys(("median", "nanmedian"), f"{_HOST}`np.median(x)`"),
    **dict.fromkeys(("quantile", "percentile"), f"{_HOST}`np.quantile(x, 0.5)`"),
    **dict.fromkeys(("allclose", "isclose"), f"{_HOST}`np.allclose(x, y)`"),
    "bincount": f"{_HOST}`np.bincount(labels)`",
    **dict.fromkeys(("rand", "uniform", "rand_like"), _DRAWN.format(draw="uniform")),
    **dict.fromkeys(("randn", "normal", "randn_like"), _DRAWN.format(draw="gaussian")),
    "randint": "`duoln.tensor(duoln.Stream(0, \"noise\").integers(5, (4, 6)))`",
    "randperm": "`duoln.tensor(duoln.Stream(0, \"noise\").permutation(5))`",
    "bernoulli": "`duoln.tensor(duoln.Stream(0, \"noise\").keep_mask((4, 6), 0.5))`",
    **dict.fromkeys(("multinomial", "categorical", "gumbel_softmax"),
                    "`duoln.tensor(duoln.Stream(0, \"noise\").categorical(logits=logits))`, a class a row"),
    **dict.fromkeys(("array", "asarray", "as_tensor", "from_numpy"), _ARRAY),
    "concatenate": "`ops.concat(x, y, axis=0)`", "vstack": "`ops.concat(x, y, axis=0)`",
    "hstack": "`ops.concat(x, y, axis=1)`", "swapaxes": "`ops.permute_dims(x, axes=(1, 0))`",
    "amax": "`ops.max(x)`", "amin": "`ops.min(x)`", "dot": "`ops.vecdot(x, y)`",
    **dict.fromkeys(("linalg", "inv", "svd"), f"{_HOST}`duoln.tensor(np.linalg.inv(square.numpy()), square.backend)`"),
    **dict.fromkeys(("unique", "masked_select"), f"{_NONE}: the shape depends on values"),
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), "`-ops.softplus(-x)`"), "swish": "`ops.silu(x)`",
    "mish": "`x * ops.tanh(ops.softplus(x))`", "hardtanh": "`ops.clip(x, -1.0, 1.0)`",
    "relu6": "`ops.clip(x, 0.0, 6.0)`",
    "softsign": "`x / (1.0 + ops.abs(x))`", "glu": "`x[:, :3] * ops.sigmoid(x[:, 3:])`",
    "normalize": "`x / ops.maximum(ops.vector_norm(x, axis=-1, keepdims=True), 1e-12)`",
    "cosine_similarity": OF_NN["CosineSimilarity"], "smooth_l1_loss": OF_NN["SmoothL1Loss"],
    "mse_loss": OF_NN["MSELoss"], "l1_loss": OF_NN["L1Loss"], "huber_loss": OF_NN["HuberLoss"],
    "soft_cross_entropy": f"`ops.mean(ops.probability_cross_entropy(logits, probabilities))`{_MEAN}",
    **dict.fromkeys(("sigmoid_cross_entropy", "sigmoid_binary_cross_entropy"), _BINARY),
    **dict.fromkeys(("softmax_cross_entropy_with_integer_labels", "sparse_categorical_crossentropy"), _CROSS_ENTROPY),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "segment_sum"),
                    "`ops.matmul(ops.matrix_transpose(ops.one_hot(rows, 4)), x[:2])` adds rows at indices"),
    "diag": "`ops.einsum(\"ii->i\", square)`", "trace": "`ops.einsum(\"ii->\", square)`",
    "shape": "`x.shape`", "size": "`x.size`", "numel": "`x.size`", "grad": _GRADIENT,
    **dict.fromkeys(("stop_gradient", "detach"), "`duoln.stop_gradient(x)` is a constant"),
    **dict.fromkeys(("scan", "fori_loop", "while_loop"), _LOOP), "cond": "`ops.where(mask, x, y)` chooses by values",
    "select": "`ops.where(mask, x, y)`", "adaptive_avg_pool2d": OF_NN["AdaptiveAvgPool2d"],
    **dict.fromkeys(("conv_transpose2d", "interpolate", "ctc_loss"), _NONE),
}
OF_OPTIM = {
    "adam": "`optim.Adam(1e-3)`", "adamw": "`optim.AdamW(1e-3)`", "sgd": "`optim.SGD(0.1)`",
    "chain": "`optim.Adam(1e-3, clip=optim.clip_global_norm(5.0))`", "apply_updates": _UPDATE,
    **dict.fromkeys(("clip_by_global_norm", "clip_grad_norm_"), OF_NN["utils"]),
    "MultiSteps": "`optim.Accumulate()` adds up the gradients of several batches",
    **dict.fromkeys(("EMA", "ExponentialMovingAverage", "ema", "swa_utils"), "`optim.MovingAverage(0.999)`"),
    "ExponentialLR": "`optim.Adam(lambda update: 1e-3 * 0.999 ** update)`",
    **dict.fromkeys(("OneCycleLR", "warmup_cosine_decay_schedule"),
                    "`optim.Adam(optim.linear_warmup(9, optim.cosine(1e-3, updates)))`"),
    "cosine_decay_schedule": "`optim.Adam(optim.cosine(1e-3, updates))`",
    "ReduceLROnPlateau": "another rate can be given to each update: `optimizer.update(params, gradients, slots, rate)`",
    "GradScaler": "bfloat16 has the range of float32, so no loss is scaled",
    **dict.fromkeys(("Adamax", "NAdam", "RAdam", "Adadelta", "Lion", "Lamb", "LAMB"), _STEP_OF_ITS_OWN),
    "lr_scheduler": _RATE, "StepLR": _RATE,
    "MultiStepLR": "`optim.Adam(optim.piecewise(1e-3, {100: 1e-4}))`",
    "LinearLR": "`optim.Adam(optim.linear_warmup(9, 1e-3))` rises to 1e-3",
    "CosineAnnealingLR": "`optim.Adam(optim.cosine(1e-3, updates))`, which ends at 0 and stays there",
    "SequentialLR": "`optim.Adam(optim.linear_warmup(9, optim.cosine(1e-3, updates)))`",
    "LBFGS": "there is none; `optim.Adam(1e-3)` is of first order",
    "RMSprop": "`optim.RMSProp(0.01, beta=0.99)` has PyTorch's defaults",
    "Adagrad": "there is none; `optim.RMSProp(0.01)` forgets old gradients, as Adagrad does not",
}
OF_DATA = {
    **dict.fromkeys(("DataLoader", "TensorDataset", "Dataset"), OF_DUOLN["utils"]),
    "random_split": "slices of the arrays: `array[:3], array[3:]`",
}
OF_INIT = {
    **dict.fromkeys(("xavier_uniform_", "xavier_uniform", "glorot_uniform"), "`nn.init.glorot`, as weight_init="),
    **dict.fromkeys(("kaiming_normal_", "kaiming_uniform_", "he_normal"), "`nn.init.he`, as weight_init="),
    **dict.fromkeys(("normal_", "normal", "trunc_normal_"), "`nn.init.gaussian(0.02)`, as weight_init="),
    "uniform_": "`nn.init.uniform(0.1)`, as weight_init=", "constant_": "`nn.init.constant(0.5)`, as weight_init=",
    "zeros_": "`nn.init.zeros`, as weight_init=", "ones_": "`nn.init.ones`, as weight_init=",
    "orthogonal_": "`nn.init.orthogonal`, as weight_init=",
}
OF_STREAMS = {
    **dict.fromkeys(("normal", "randn", "standard_normal"), "`stream.gaussian((4, 6))`"),
    **dict.fromkeys(("random", "rand"), "`stream.uniform((4, 6))`"), "randint": "`stream.integers(5, (4, 6))`",
    **dict.fromkeys(("shuffle", "randperm"), "`array[stream.permutation(len(array))]`"),
    "bernoulli": "`stream.keep_mask((4, 6), 0.5)`",
    "choice": "`stream.integers(5, (3,))` with replacement, `stream.permutation(5)[:3]` without, "
              "`stream.categorical(probabilities=[0.2, 0.8])` by probabilities",
    "multinomial": "`stream.categorical(probabilities=[0.2, 0.8])`", "split": "`stream.child(\"part\")`",
}
OF_TENSORS = {
    **_OF_BOTH, "backward": _GRADIENT, "grad": _GRADIENT, "requires_grad": _GRADIENT, "requires_grad_": _GRADIENT,
    "detach": "`duoln.stop_gradient(x)` is a constant", "cuda": _ONE_BACKEND,
    "cpu": "`x.numpy()` is the array on the host",
    "to": f"{_ONE_BACKEND}; `x.astype(\"int32\")` has another dtype", "device": "`x.backend.device` is its name",
    "view": "`x.reshape(2, 12)` takes the same sizes", "t": "`x.T`", "squeeze": "`ops.squeeze(row, axis=0)`",
    "contiguous": "every operator takes every tensor, so `x` itself will do", "float": "`x.astype(\"float32\")`",
    **dict.fromkeys(("long", "int"), "`x.astype(\"int32\")`"), "bool": "`x.astype(\"bool\")`",
    "double": "`x.astype(\"float64\")`, on NumPy", "half": "`x.astype(\"float16\")` stores 16 bits",
    **dict.fromkeys(("clone", "copy"), "a tensor is immutable and needs no copy: `x` itself will do"),
    **{name: f"`ops.{name}(x)`" for name in ("exp", "log", "sqrt", "tanh", "sigmoid", "relu")},
    "softmax": "`ops.softmax(x, axis=-1)`", "log_softmax": "`ops.log_softmax(x, axis=-1)`",
    "argmax": "`ops.argmax(x, axis=-1)`", "abs": "`abs(x)`", "pow": "`x ** 2.0`",
    **dict.fromkeys(("clamp", "clip"), "`ops.clip(x, 0.0, 1.0)`"),
    **dict.fromkeys(("matmul", "mm", "bmm", "dot"), "`x @ w`"), "add": "`x + y`", "mul": "`x * y`",
    "split": "`ops.split(x, x.shape[0] // 2, axis=0)` gives parts of size 2; duoln takes their number",
    "repeat": "`ops.tile(x, (2, 1))`",
    "add_": f"{_IMMUTABLE}`x = x + y`", "mul_": f"{_IMMUTABLE}`x = x * y`", "copy_": f"{_IMMUTABLE}`x = y`",
    "zero_": f"{_IMMUTABLE}`x = ops.zeros_like(x)`", "fill_": f"{_IMMUTABLE}`x = ops.full_like(x, 2.0)`",
    "at": f"{_IMMUTABLE}`ops.where(mask, x, y)` has other values at a mask",
    "is_cuda": "`x.backend.name` is \"cupy\" on a GPU",
    "dim": "`x.ndim`", "numel": "`x.size`", "var": "`ops.var(x, correction=1)`", "std": "`ops.std(x, correction=1)`",
}
OF_MODULES = {
    "parameters": _PARAMS, "named_parameters": f"{_PARAMS}; `duoln.tree.items(params)` has their names",
    "state_dict": f"{_PARAMS}; that dict is the state, which `duoln.save(path, params)` writes",
    "load_state_dict": f"{_PARAMS}; give others to `model(params, x)`",
    "train": _NO_MODE, "eval": _NO_MODE, "to": _ONE_BACKEND, "cuda": _ONE_BACKEND, "cpu": _ONE_BACKEND,
    "zero_grad": f"gradients are a result, so none are to clear: {_GRADIENT}",
    "half": _16_BITS,
    "requires_grad_": "`duoln.value_and_grad(loss)(params, x)` differentiates by params; leave out what is fixed",
    "apply": "`def adapted(self, params, rng): return params` of a module changes its initial parameters",
    "register_buffer": _CONSTANT, "register_parameter": _OWN,
    "named_modules": "`model.modules()` has paths and modules",
    "register_forward_hook": "`with duoln.observed(model, tell): model(params, x)` calls tell(path, layer, output)",
    "flatten_parameters": "nothing needs it", "weight": f"{_PARAMS}, in a branch for each layer",
    "forward": "`model(params, x)`; the method to override is __call__(self, params, x)",
}
_STATE = "`slots = optimizer.init(params)` are the state, which each update makes anew"
OF_OPTIMIZERS = {
    **dict.fromkeys(("step", "apply_updates", "apply_gradients", "minimize"), _UPDATE),
    "zero_grad": OF_MODULES["zero_grad"], "param_groups": _RATE, "state_dict": _STATE,
    "load_state_dict": _STATE, "add_param_group": _UPDATE,
}
OF_RECURRENT = {
    "bias": "the norm decides whether a cell has a bias; `nn.LSTM(8, 16, bias=\"pytorch\")` has two",
    "num_layers": "`nn.LSTM(8, 16, layers=2)`", "hidden_size": "n_hidden, `nn.LSTM(n_in=8, n_hidden=16)`",
    "input_size": "n_in, `nn.LSTM(n_in=8, n_hidden=16)`", "proj_size": "`nn.Linear(16, 4)` after the layer",
    "nonlinearity": "`nn.RNN(8, 16)` has tanh", "forget_bias": "`nn.LSTM(8, 16, forget_bias=1.0)` has one",
    "update_gate": "`nn.GRU(8, 16, update_gate=\"keeps\")` has one",
}
KEYWORDS = {
    "dim": "axis", "keepdim": "keepdims", "lr": "learning_rate rate", "kernel_size": "size", "in_features": "n_in",
    "out_features": "n_out", "in_channels": "n_in", "out_channels": "n_out", "input_size": "n_in shapes",
    "hidden_size": "n_hidden", "num_layers": "layers", "num_embeddings": "words", "embedding_dim": "width",
    "normalized_shape": "width", "num_features": "width", "weight": "gain class_weights",
    "target": "labels targets probabilities", "other": "y", "low": "min", "high": "max", "value": "fill_value",
    "input": "x predictions", "dims": "axes", "size": "shape", "device": "backend", "max_norm": "limit",
    "num_groups": "groups", "num_channels": "width", "elementwise_affine": "affine", "alpha": "beta slope",
    "rho": "beta", "decay": "beta", "negative_slope": "slope", "embed_dim": "width", "d_model": "width",
    "num_heads": "heads", "nhead": "heads", "dim_feedforward": "hidden", "features": "n_out", "kind": "norm",
}
"""Arguments of PyTorch, and what they may be called here, each call having one of these."""
MASK = "duoln.tensor(np.arange(len(x))[:, None] < lengths, x.backend)"
"""The mask of time-major sequences."""
_COUNTED = "`ops.sum(losses * counted) / ops.sum(counted)` is the mean of those that a mask of 0 and 1 counts"
NO_KEYWORDS = {
    "weight_decay": "weight decay is a term of the loss, `0.5 * decay * ops.sum(ops.square(w))` for a weight w; "
                    "`optim.AdamW(1e-3, weight_decay=0.01)` decays apart from the gradient",
    "betas": "each has a name: `optim.Adam(1e-3, beta1=0.9, beta2=0.999)`",
    "lengths": f"mask= is true at a sequence's own steps, `{MASK}`",
    "amsgrad": _NONE, "maximize": "minimise its negative, `-loss(params, x)`", "foreach": _NONE, "fused": _NONE,
    "params": "the optimizer's methods take them: `slots = optimizer.init(params)`",
    **dict.fromkeys(("reduction", "size_average"), "a loss has a value for each example: `ops.mean(losses)`, "
                    "`ops.sum(losses)`"),
    "ignore_index": _COUNTED,
    "pos_weight": "`losses * (1 + (pos_weight - 1) * targets)`, of targets that are 0 or 1",
    "inplace": "a tensor is immutable, and each operator makes a new one",
    "out": "a tensor is immutable, and each operator makes a new one",
    "shuffle": "duoln.data.Batches has a new random order each epoch",
    "drop_last": "rows that fill no batch are left out, other ones each epoch",
    "num_workers": "a batch is made where batches(step) is called", "pin_memory": _NONE,
    "requires_grad": _GRADIENT, "retain_graph": _GRADIENT,
    **dict.fromkeys(("donate", "donate_argnums"), "`optim.Adam(1e-3, donate=True)` may overwrite parameters"),
    "static_argnums": "what is no tensor is no argument of a step: `duoln.compile(lambda x: step(x, n))`",
    "momentum": "`optim.SGD(0.1, momentum=0.9)` has it; `nn.with_population(model, params, batches)` gathers batch "
                "norm's statistics",
    "track_running_stats": "`nn.with_population(model, params, batches)` gathers batch norm's statistics",
    "affine": "batch norm has gain and bias",
    "padding_mode": "padding is of zeros; a function before the layer may pad by others", "max_norm": _NONE,
}
"""Arguments of PyTorch that nothing here has, with duoln's way of doing the same."""
ABSENT = {"rate": "optimizer.rate_at(update) gives it", "backend": "duoln.backend() or x.backend gives it"}
"""Arguments that a call needs and that PyTorch's has not: where they come from."""


OF_PYTHON = {
    "xor": ("^", "`mask != other`, of bools"), "lshift": ("<<", "`indices * 2 ** n`"),
    "rshift": (">>", "`indices // 2 ** n`"),
}
"""Python's operators that tensors have not: their signs, and duoln's way of doing the same."""


def refuse_operators(kind: type) -> None:
    """Let a class name the remedy for each operator of Python's that it has not."""
    for name, (sign, remedy) in OF_PYTHON.items():
        def refuse(self: Any, y: Any, sign: str = sign, remedy: str = remedy) -> Never:
            raise DtypeError(f"[{sign}] expected an operator that tensors have, found {sign}; in duoln: {remedy}")

        setattr(kind, f"__{name}__", refuse)
        setattr(kind, f"__r{name}__", refuse)


@cache
def of_standard() -> dict[str, str]:
    """The answers of the page of operators for names of the array API standard that duoln has not."""
    text = files("duoln").joinpath("docs", "operators.md").read_text(encoding="utf-8")
    rows = [[cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]] for line in text.splitlines()
            if line.startswith("|")]
    absent = next(k for k, row in enumerate(rows) if row == ["reason", "functions"])
    named = next(k for k, row in enumerate(rows) if row == ["function", "expression"])
    answers = {name: expression for names, expression in rows[named + 2:absent] for name in _QUOTED.findall(names)}
    answers |= {name: f"{_NONE}: {reason}" for reason, names in rows[absent + 2:] for name in _QUOTED.findall(names)}
    return {name.removesuffix(".*").rpartition(".")[2]: answer for name, answer in answers.items()}


def our_word(keyword: str, known: Iterable[str] | None = None) -> str | None:
    """Our name for an argument of PyTorch, among the arguments `known` of a call; in a bridge, its name for ours.

    None if there is none.
    """
    names = KEYWORDS.get(keyword, "").split()
    if known is None:
        return next(iter(names), None)
    return next((name for name in (*names, *(k for k, ours in KEYWORDS.items() if keyword in ours.split()))
                 if name in known), None)


def how_to_name(keyword: str, parameters: Iterable[str]) -> str:
    """The end of an error about an argument that a call has not: our name for it, duoln's way, or the nearest name."""
    known = list(parameters)
    near = our_word(keyword, known)
    if near is not None:
        return f"; did you mean {near!r}?"
    if keyword in NO_KEYWORDS:
        return f"; in duoln: {NO_KEYWORDS[keyword]}"
    return did_you_mean(keyword, known)


def add_hint(error: TypeError, function: Callable[..., Any], keywords: Iterable[str] = ()) -> None:
    """Let the error of a call of `function` end with our name for an argument that it has not, or with what gives one
    that is missing; `keywords` are the names that the call gives.
    """
    if type(error) is not TypeError:
        return
    hint, known = "", inspect.signature(function).parameters
    if unknown := re.search(r"got an unexpected keyword argument '(\w+)'", str(error)):
        if unknown[1] not in known:  # else a function that this one calls has not the argument
            hint = how_to_name(unknown[1], known)
    elif missing := re.search(r"missing \d+ required .* arguments?: (.*)", str(error)):
        names = re.findall(r"'(\w+)'", missing[1])
        hint = next((f"; {ABSENT[name]}" for name in names if name in ABSENT), "")
        for keyword in keywords:
            if keyword not in known and our_word(keyword, names):
                hint += f"; {keyword!r} is {our_word(keyword, names)!r} in duoln"
    elif re.search(rf"\b{function.__name__}\(\) takes .* positional arguments?", str(error)):
        options = [f"{name}=" for name, each in known.items() if each.kind is each.KEYWORD_ONLY]
        hint = f"; {', '.join(options)} by name" if options else ""
    error.args = (f"{error}{hint}",)


def hinted(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose error for an unknown argument ends with our name for it."""
    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            add_hint(error, function, kwargs)
            if function.__name__ == "__init__":  # of a class that inherits it
                error.args = (str(error).replace(function.__qualname__, f"{type(args[0]).__qualname__}.__init__"),)
            raise

    return called


class _Missing:
    """An attribute that a class has not. Reading it raises an AttributeError that says what to write instead."""

    def __init__(self, name: str, remedy: str) -> None:
        self._name, self._remedy = name, remedy
        self.__doc__ = f"PyTorch's; in duoln: {remedy}."  # what `help` shows

    def __get__(self, instance: Any, owner: type) -> Never:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; in duoln: {self._remedy}",
                             name=self._name, obj=None)

    def __repr__(self) -> str:
        return f"<no attribute; in duoln: {self._remedy}>"


def name_missing(kind: type, remedies: Mapping[str, str]) -> None:
    """Let a class name the remedy for each attribute that it has not."""
    for name, remedy in remedies.items():
        if name not in dir(kind):
            setattr(kind, name, _Missing(name, remedy))


def present_names(thing: object, names: Iterable[str]) -> list[str]:
    """For `dir`: the names without those that only say what to write instead."""
    return [name for name in names if not is_missing(inspect.getattr_static(type(thing), name, None))]


def is_missing(member: object) -> bool:
    """True if a member of a class only says what to write instead."""
    return isinstance(member, _Missing)
