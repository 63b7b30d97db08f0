"""Names that PyTorch has and duoln has not, with duoln's way of doing the same: the end of errors about such names.

Modules look a name up here when they lack it. Classes get a descriptor for each name, because a `__getattr__` of the
class would make every access to their attributes slower.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Never

from duoln.core.arguments import did_you_mean
from duoln.errors import DtypeError

_GRADIENT = "loss, gradients = duoln.value_and_grad(loss)(params, x) computes a gradient"
_UPDATE = "params, slots = optimizer.update(params, gradients, slots, rate) makes an update"
_PARAMS = "a module holds no parameters; params = duoln.to_tensors(model.init(0)) makes them"
_ONE_BACKEND = "a tensor stays where it was made: duoln.tensor(x, \"cupy\"), duoln.to_tensors(params, \"cupy\")"
_NO_MODE = "a module has no mode; dropout masks are part of a training batch, and nn.with_population serves batch norm"
_NO_CONTEXT = "only what runs inside duoln.value_and_grad is recorded, so no such context is needed"
_CROSS_ENTROPY = "ops.softmax_cross_entropy(logits, labels) is a loss for each example; ops.mean of it is their mean"
_SLICES = "a tensor is immutable; make a new one with ops.where(mask, x, y) or ops.concat(x, y)"
_SEED = "each stream of random numbers has its own seed: model.init(0), duoln.randomness.Stream(seed, name)"
_RATE = "optimizer.rate_at(update) is the learning rate of an update, of a number or of a function of the update"

OF_DUOLN = {
    "no_grad": _NO_CONTEXT, "inference_mode": _NO_CONTEXT, "enable_grad": _NO_CONTEXT, "manual_seed": _SEED,
    "grad": _GRADIENT, "autograd": _GRADIENT, "from_numpy": "duoln.tensor(x) takes NumPy arrays",
    "as_tensor": "duoln.tensor(x) takes lists, numbers and NumPy arrays", "cat": "ops.concat(x, y, axis=0)",
    "device": "duoln.backend(\"cupy\"), \"mlx\" or \"numpy\" is a device", "cuda": "duoln.backend(\"cupy\") is the GPU",
    "utils": "duoln.data.Batches makes batches", "jit": "duoln.compile(step) compiles a step",
    "float32": "a dtype is a name: \"float32\"", "int32": "a dtype is a name: \"int32\"",
    "rand": _SEED, "randn": _SEED, "functional": "functions are in duoln.ops",
}
OF_NN = {
    **{kind: f"ops.{name} is a function, which nn.Sequential takes" for kind, name in {
        "ReLU": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "LeakyReLU": "leaky_relu", "Softplus": "softplus",
        "ELU": "elu", "SiLU": "silu", "GELU": "gelu"}.items()},
    "Softmax": "ops.softmax(x, axis=-1)", "LogSoftmax": "ops.log_softmax(x, axis=-1)",
    "Flatten": "nn.flatten is a function, which nn.Sequential takes", "Identity": "lambda x: x in nn.Sequential",
    "CrossEntropyLoss": _CROSS_ENTROPY, "NLLLoss": _CROSS_ENTROPY,
    "BCEWithLogitsLoss": "ops.bce_with_logits(logits, targets)", "BCELoss": "ops.bce_with_logits(logits, targets)",
    "MSELoss": "ops.mse_loss(predictions, targets)", "L1Loss": "ops.l1_loss(predictions, targets)",
    "HuberLoss": "ops.huber_loss(predictions, targets)", "KLDivLoss": "ops.kl_div(log_predictions, targets)",
    "Dropout": "x * mask, with masks of randomness.Stream(seed, name).keep_mask(shape, keep) in the batch",
    "BatchNorm1d": "nn.BatchNorm(width)", "BatchNorm2d": "nn.BatchNorm(width), channels last",
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), "nn.InstanceNorm(width), channels last"),
    "MaxPool2d": "ops.max_pool2d(x, size=2)", "AvgPool2d": "ops.avg_pool2d(x, size=2)",
    "MaxPool1d": "ops.max_pool1d(x, size=2)", "AvgPool1d": "ops.avg_pool1d(x, size=2)",
    "Parameter": "arrays of a module's own come from its method weights(rng), and __call__ gets them in params",
    "ModuleList": "nn.Sequential, or one attribute for each module", "ModuleDict": "nn.Sequential(name=module)",
    "functional": "functions are in duoln.ops", "utils": "optim.clip_global_norm(5.0) is an argument of an optimiser",
    "DataParallel": "duoln run --ranks N trains one model in N processes",
    "Bilinear": "nn.Linear and ops.matmul", "MultiheadAttention": "nn.MultiHeadAttention(width, heads)",
    "TransformerEncoderLayer": "nn.TransformerBlock(width, heads, hidden, norm=\"post\")",
}
OF_OPS = {
    "cat": "ops.concat(x, y, axis=0)", "cross_entropy": _CROSS_ENTROPY, "nll_loss": _CROSS_ENTROPY,
    "binary_cross_entropy_with_logits": "ops.bce_with_logits(logits, targets)",
    "mm": "ops.matmul(x, y)", "bmm": "ops.matmul(x, y)",
    "permute": "ops.permute_dims(x, axes=(1, 0))", "transpose": "ops.permute_dims(x, axes=(1, 0))",
    "unsqueeze": "ops.expand_dims(x, axis=0)", "view": "ops.reshape(x, shape)", "flatten": "nn.flatten(x)",
    "chunk": "ops.split(x, parts)", "expand": "ops.broadcast_to(x, shape)", "gather": "ops.take_along_axis",
    "index_select": "ops.take", "tensor": "duoln.tensor(x)", "dropout": OF_NN["Dropout"],
    "power": "ops.pow(x, 2.0)", "cumsum": "ops.cumulative_sum(x, axis=0)", "norm": "ops.vector_norm(x)",
    "repeat_interleave": "ops.repeat(x, 2, axis=0)", "masked_fill": "ops.where(mask, y, x)",
}
OF_OPTIM = {
    "AdamW": "optim.Adam; weight decay is a term of the loss", "lr_scheduler": _RATE,
    "LBFGS": "optim.SGD or optim.Adam", "RMSprop": "optim.RMSProp(learning_rate)",
    "Adagrad": "optim.RMSProp or optim.Adam", "StepLR": _RATE, "CosineAnnealingLR": _RATE,
}
OF_TENSORS = {
    "backward": _GRADIENT, "grad": _GRADIENT, "requires_grad": _GRADIENT, "requires_grad_": _GRADIENT,
    "detach": "duoln.stop_gradient(x) is a constant", "cuda": _ONE_BACKEND, "cpu": "x.numpy() is the array on the host",
    "to": f"{_ONE_BACKEND}; x.astype(\"int32\") has another dtype", "device": "x.backend.device is its name",
    "view": "x.reshape takes the same sizes", "permute": "ops.permute_dims(x, axes=(1, 0))", "t": "x.T",
    "transpose": "ops.permute_dims(x, axes=(1, 0))", "unsqueeze": "ops.expand_dims(x, axis=0)",
    "squeeze": "ops.squeeze(x, axis=0)", "flatten": "nn.flatten(x), or x.reshape(-1)",
    "contiguous": "every operator takes every tensor", "float": "x.astype(\"float32\")",
    **dict.fromkeys(("long", "int"), "x.astype(\"int32\")"), "bool": "x.astype(\"bool\")",
    "double": "x.astype(\"float64\"), on NumPy", "half": "x.astype(\"float16\") stores 16 bits",
    **dict.fromkeys(("clone", "copy"), "a tensor is immutable and needs no copy"),
    "exp": "ops.exp(x)", "log": "ops.log(x)", "sqrt": "ops.sqrt(x)", "tanh": "ops.tanh(x)", "sigmoid": "ops.sigmoid(x)",
    "relu": "ops.relu(x)", "softmax": "ops.softmax(x, axis=-1)", "log_softmax": "ops.log_softmax(x, axis=-1)",
    "argmax": "ops.argmax(x, axis=-1)", "abs": "abs(x)", "pow": "x ** 2.0", "clamp": "ops.clip(x, min, max)",
    "clip": "ops.clip(x, min, max)", "matmul": "x @ y", "mm": "x @ y", "bmm": "x @ y", "dot": "x @ y", "add": "x + y",
    "mul": "x * y", "expand": "ops.broadcast_to(x, shape)", "chunk": "ops.split(x, parts)",
    "split": "ops.split(x, parts)", "gather": "ops.take_along_axis", "masked_fill": "ops.where(mask, y, x)",
    "add_": _SLICES, "mul_": _SLICES, "zero_": _SLICES, "copy_": _SLICES, "fill_": _SLICES, "dim": "x.ndim",
    "numel": "x.size", "norm": "ops.vector_norm(x)", "var": "ops.var(x)", "std": "ops.std(x)",
}
OF_MODULES = {
    "parameters": _PARAMS, "named_parameters": f"{_PARAMS}; duoln.tree.items(params) has their names",
    "state_dict": f"{_PARAMS}; that dict is the state, which duoln.save(path, params) writes",
    "load_state_dict": f"{_PARAMS}; give others to model(params, x)",
    "train": _NO_MODE, "eval": _NO_MODE, "to": _ONE_BACKEND, "cuda": _ONE_BACKEND, "cpu": _ONE_BACKEND,
    "zero_grad": "gradients are a result of duoln.value_and_grad, so none are to clear", "half": OF_TENSORS["half"],
    "requires_grad_": "duoln.value_and_grad(loss)(params) differentiates by params; leave out what is fixed",
    "apply": "override adapted(params, rng) to change initial parameters", "register_buffer": _PARAMS,
    "register_parameter": OF_NN["Parameter"], "named_modules": "model.modules() has paths and modules",
    "register_forward_hook": "with duoln.observed(model, tell): model(params, x) calls tell(path, layer, output)",
    "forward": "call model(params, x); the method to override is __call__(self, params, x)",
}
OF_OPTIMIZERS = {
    "step": _UPDATE, "zero_grad": OF_MODULES["zero_grad"], "param_groups": _RATE,
    "state_dict": "slots, which optimizer.init(params) makes, are the state",
    "load_state_dict": "slots, which optimizer.init(params) makes, are the state", "add_param_group": _UPDATE,
}
OF_RECURRENT = {
    "bias": "the norm decides which biases a cell has", "num_layers": "layers=2", "hidden_size": "n_hidden=16",
    "input_size": "n_in=8", "proj_size": "nn.Linear after the layer", "nonlinearity": "nn.RNN has tanh",
}
KEYWORDS = {
    "dim": "axis", "keepdim": "keepdims", "lr": "learning_rate", "kernel_size": "size", "in_features": "n_in",
    "out_features": "n_out", "in_channels": "n_in", "out_channels": "n_out", "input_size": "n_in",
    "hidden_size": "n_hidden", "num_layers": "layers", "num_embeddings": "words", "embedding_dim": "width",
    "normalized_shape": "width", "num_features": "width", "weight": "gain", "target": "labels", "other": "y",
    "betas": "beta1", "low": "min", "high": "max", "value": "fill_value", "input": "x", "dims": "axes", "size": "shape",
    "device": "backend", "max_norm": "limit", "lengths": "mask", "num_groups": "groups", "num_channels": "width",
    "elementwise_affine": "affine",
}
"""Arguments of PyTorch, and what they are called here."""
NO_KEYWORDS = {
    "weight_decay": "weight decay is a term of the loss, 0.5 * decay * ops.sum(ops.square(w)) for a weight w",
    "amsgrad": "there is none", "maximize": "minimise -loss", "foreach": "there is none", "fused": "there is none",
    "params": "optimizer.init(params), optimizer.update(params, ...) and model(params, x) take them",
    "reduction": "a loss has a value for each example; ops.mean or ops.sum of it is one number",
    "size_average": "a loss has a value for each example; ops.mean or ops.sum of it is one number",
    "ignore_index": "multiply the losses of the examples by a mask",
    "pos_weight": "multiply the losses of the examples by weights",
    "inplace": "a tensor is immutable, and each operator makes a new one",
    "out": "a tensor is immutable, and each operator makes a new one",
    "shuffle": "duoln.data.Batches has a new random order each epoch",
    "drop_last": "rows that fill no batch are left out, other ones each epoch",
    "num_workers": "a batch is made where batches(step) is called", "pin_memory": "there is none",
    "requires_grad": _GRADIENT, "retain_graph": _GRADIENT,
    "momentum": "optim.SGD has it; batch norm's statistics are gathered by nn.with_population",
    "track_running_stats": "batch norm's statistics are gathered by nn.with_population",
    "affine": "batch norm has gain and bias", "padding_mode": "ops.pad before the layer", "max_norm": "there is none",
}
"""Arguments of PyTorch that nothing here has, with duoln's way of doing the same."""


OF_PYTHON = {
    "floordiv": ("//", "ops.floor(x / y)"), "mod": ("%", "x - y * ops.floor(x / y)"), "xor": ("^", "x != y, of bools"),
    "divmod": ("divmod", "ops.floor(x / y)"), "lshift": ("<<", "x * 2"), "rshift": (">>", "ops.floor(x / 2)"),
}
"""Python's operators that tensors have not: their signs, and duoln's way of doing the same."""


def refuse_operators(kind: type) -> None:
    """Let a class name the remedy for each operator of Python's that it has not."""
    for name, (sign, remedy) in OF_PYTHON.items():
        def refuse(self: Any, y: Any, sign: str = sign, remedy: str = remedy) -> Never:
            raise DtypeError(f"[{sign}] expected an operator that tensors have, found {sign}; in duoln: {remedy}")

        setattr(kind, f"__{name}__", refuse)
        setattr(kind, f"__r{name}__", refuse)


def unknown_name(module: str, name: str, remedies: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """The error for a name that a module has not: it ends with duoln's way, or with the nearest name."""
    advice = f"; in duoln: {remedies[name]}" if name in remedies else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name, obj=None)


def how_to_name(keyword: str, parameters: Iterable[str]) -> str:
    """The end of an error about an argument that a call has not: our name for it, duoln's way, or the nearest name."""
    known = list(parameters)
    near = KEYWORDS.get(keyword)
    if near in known:
        return f"; did you mean {near!r}?"
    if keyword in NO_KEYWORDS:
        return f"; in duoln: {NO_KEYWORDS[keyword]}"
    return did_you_mean(keyword, known)


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
    return [name for name in names if not isinstance(inspect.getattr_static(type(thing), name, None), _Missing)]
