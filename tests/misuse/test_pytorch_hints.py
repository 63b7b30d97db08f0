"""Every hint for those who know PyTorch is a line of code: each is run, and gives what PyTorch's line gives."""

import ast
import copy
import math
import re

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim
from duoln.core import pytorch_names
from duoln.randomness import Stream
from duoln.testing import check_error

TABLES = {"duoln": pytorch_names.OF_DUOLN, "nn": pytorch_names.OF_NN, "ops": pytorch_names.OF_OPS, "optim": pytorch_names.OF_OPTIM,
          "tensor": pytorch_names.OF_TENSORS, "module": pytorch_names.OF_MODULES, "optimizer": pytorch_names.OF_OPTIMIZERS,
          "data": pytorch_names.OF_DATA, "init": pytorch_names.OF_INIT, "stream": pytorch_names.OF_STREAMS,
          "recurrent": pytorch_names.OF_RECURRENT, "argument": pytorch_names.NO_KEYWORDS,
          "python": {name: remedy for name, (_, remedy) in pytorch_names.OF_PYTHON.items()}}
HINTS = {f"{table}.{name}": remedy for table, remedies in TABLES.items() for name, remedy in remedies.items()}
OWNERS = {"duoln": duoln, "nn": nn, "ops": ops, "optim": optim, "data": duoln.data, "init": nn.init, "stream": Stream(0, "noise"),
          "tensor": duoln.tensor([1.0], "numpy"), "module": nn.Sequential(nn.Linear(2, 3)), "optimizer": optim.Adam(1e-3)}
"""What has none of the names of a table."""
WITHOUT_CODE = {"nn.DataParallel", "duoln.pmap", "module.flatten_parameters", "nn.ConvTranspose2d", "nn.Conv3d", "nn.CTCLoss", "ops.conv_transpose2d", "ops.interpolate", "ops.ctc_loss",
                "ops.unique", "ops.masked_select", "duoln.checkpoint", "optim.GradScaler", *(f"argument.{name}" for name in (
    "amsgrad", "foreach", "fused", "inplace", "out", "shuffle", "drop_last", "num_workers", "pin_memory", "affine", "padding_mode", "max_norm"))}

GRADIENT = ("hint()['gradients']['w']", "torch.autograd.grad(((tx @ tw) ** 2).mean(), tw)[0]")
STEPS = ("[hint().rate_at(k) for k in (0, 99, 100, 250)]", "rates(torch.optim.lr_scheduler.StepLR, step_size=100, gamma=0.5)")
DROPOUT = ("np.unique(dropped(hint(), nn.DropoutMasks(hint(), 0)))", "torch.nn.Dropout(0.5)(torch.ones(1000)).unique()")
CROSS_ENTROPY = ("hint()", "F.cross_entropy(tlogits, tlabels)")
OF_LOGS = ("hint()", "F.nll_loss(F.log_softmax(tlogits, 1), tlabels)")
UPDATE = ("hint()['params']['w']", "updated(torch.optim.Adam, lr=rate)")
SAME = ("hint()", "tx")
PARAMS = ("[*hint()['params']]", "['w']")
SLOTS = ("hint()['slots']['m']['w'] * (1 - optimizer.beta1)", "torch.zeros_like(tw)")
NO_MODE = ("hint() is params", "True")
TENSOR = ("hint()", "torch.tensor(values)")
SEEDED = ("hint()['w'].shape, hint(1).uniform(3).shape", "tw.shape, torch.rand(3).shape")
BATCH = ("hint()(0)['x'].shape", "next(iter(torch.utils.data.DataLoader(torch.from_numpy(array), 2))).shape")
RAND = ("hint().shape, hint().dtype, 0 <= hint().numpy().min() < hint().numpy().max() < 1", "torch.rand(4, 6).shape, 'float32', True")
RANDN = ("hint().shape, hint().dtype, hint().numpy().min() < 0 < hint().numpy().max()", "torch.randn(4, 6).shape, 'float32', True")
RATES = "[hint().rate_at(k) for k in (0, 99, 100, 250)]"
WARMED_COSINE = (RATES, "rates(in_turn)")
NEAR = ("by_optimizer(hint(1))", "updated(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)")
CLIPPED = ("hint().clip({'w': w * 100.0})['w']", "clipped(tw * 100)")
SIMILARITY = ("hint()", "F.cosine_similarity(tx, ty)")
UNROLLED = ("hint()(x)", "2 * tx")
CHECKS = {
    **dict.fromkeys(("duoln.as_tensor", "duoln.array", "duoln.asarray", "ops.array", "ops.asarray", "ops.as_tensor", "ops.from_numpy"), TENSOR),
    **{f"duoln.{name}": ("hint().dtype, hint().shape", f"str(torch.tensor(array, dtype=torch.{name}).dtype)[6:], tx.shape") for name in ("float64", "float16", "bfloat16")},
    "duoln.set_default_dtype": ("hint()", "torch.tensor(array, dtype=torch.float64)"),
    **dict.fromkeys(("duoln.int64", "duoln.long"), ("hint()", "tindices.to(torch.int32)")),
    "duoln.vmap": ("hint()", "torch.vmap(lambda row: 2 * row)(tx)"),
    **dict.fromkeys(("duoln.tree_map", "duoln.tree_util"), ("hint()['w']", "2 * tw")), "duoln.tree_leaves": ("len(hint())", "1"),
    "duoln.numpy": ("hint(), hint(1)", "F.relu(tx), tx.quantile(0.5)"),
    **dict.fromkeys(("duoln.random", "duoln.PRNGKey", "duoln.Generator", "duoln.seed", "duoln.set_seed"), SEEDED),
    **dict.fromkeys((f"duoln.{name}" for name in ("jacobian", "jacrev", "jacfwd", "hessian", "jvp")), ("hint()[1]['w']", GRADIENT[1])),
    **dict.fromkeys(("duoln.device_put", "duoln.devices", "duoln.set_default_device"), SAME), "duoln.is_tensor": ("hint()", "torch.is_tensor(tx)"),
    "duoln.eval": SAME,
    **dict.fromkeys(("duoln.lax", "ops.scan", "ops.fori_loop", "ops.while_loop"), UNROLLED),
    "nn.without_masks": ("hint()['x']", "tx"), "nn.Dense": ("hint()(params_of_dense, x)", "tx @ tw"), "nn.AdaptiveAvgPool2d": ("hint()", "F.adaptive_avg_pool2d(first(timages), 1)[:, :, 0, 0]"),
    "ops.adaptive_avg_pool2d": ("hint()", "F.adaptive_avg_pool2d(first(timages), 1)[:, :, 0, 0]"),
    **dict.fromkeys(("nn.SmoothL1Loss", "ops.smooth_l1_loss"), ("hint()", "F.smooth_l1_loss(tpredictions, ttargets)")),
    "nn.Unflatten": ("hint()", "torch.nn.Unflatten(1, (2, 3))(tx)"), "nn.ZeroPad2d": ("hint()", "last(torch.nn.ZeroPad2d(1)(first(timages)))"),
    "nn.PReLU": ("hint()({}, x)", "torch.nn.PReLU()(tx)"), "nn.value_and_grad": ("hint()['gradients']['w']", GRADIENT[1]), "ops.grad": ("hint()['gradients']['w']", GRADIENT[1]),
    **dict.fromkeys(("nn.CosineSimilarity", "ops.cosine_similarity"), SIMILARITY),
    "ops.argsort": ("hint()", "tx.argsort(-1)"), "ops.sort": ("hint()", "tx.sort(-1).values"), "ops.topk": ("hint()", "tx.topk(2).values"),
    **dict.fromkeys(("ops.median", "ops.nanmedian", "ops.quantile", "ops.percentile"), ("hint()", "tx.quantile(0.5)")),
    **dict.fromkeys(("ops.allclose", "ops.isclose"), ("hint()", "torch.allclose(tx, ty)")), "ops.bincount": ("hint()", "tlabels.bincount()"),
    **dict.fromkeys(("ops.linalg", "ops.inv", "ops.svd"), ("hint()", "tsquare.inverse()")),
    **dict.fromkeys(("ops.rand", "ops.uniform", "ops.rand_like"), RAND), **dict.fromkeys(("ops.randn", "ops.normal", "ops.randn_like"), RANDN),
    "tensor.at": ("hint()", "torch.where(tmask, tx, ty)"), "tensor.is_cuda": ("hint() == 'cupy'", "tx.is_cuda"), "module.weight": PARAMS,
    "argument.static_argnums": ("hint()(x)", "2 * tx"),
    **dict.fromkeys(("argument.donate", "argument.donate_argnums"), ("by_optimizer(hint())", "updated(torch.optim.Adam, lr=1e-3)")),
    "ops.randint": ("hint().shape, hint().dtype, hint().numpy().max()", "torch.randint(5, (4, 6)).shape, 'int32', 4"),
    "ops.randperm": ("sorted(hint().tolist())", "torch.randperm(5).sort().values.tolist()"),
    "ops.bernoulli": ("np.unique(hint().numpy())", "torch.bernoulli(torch.full((4, 60), 0.5)).unique()"),
    **dict.fromkeys(("ops.multinomial", "ops.categorical", "ops.gumbel_softmax"), ("hint().shape", "torch.multinomial(tlogits.softmax(-1), 1)[:, 0].shape")),
    **dict.fromkeys(("ops.concatenate", "ops.vstack"), ("hint()", "torch.vstack((tx, ty))")), "ops.hstack": ("hint()", "torch.hstack((tx, ty))"),
    "ops.swapaxes": ("hint()", "tx.swapaxes(0, 1)"), "ops.amax": ("hint()", "tx.amax()"), "ops.amin": ("hint()", "tx.amin()"), "ops.dot": ("hint()", "torch.linalg.vecdot(tx, ty)"),
    **dict.fromkeys(("ops.logsigmoid", "ops.log_sigmoid"), ("hint()", "F.logsigmoid(tx)")), "ops.swish": ("hint()", "F.silu(tx)"), "ops.mish": ("hint()", "F.mish(tx)"),
    "ops.hardtanh": ("hint()", "F.hardtanh(tx)"), "ops.relu6": ("hint()", "F.relu6(tx)"), "ops.softsign": ("hint()", "F.softsign(tx)"), "ops.glu": ("hint()", "F.glu(tx)"),
    "ops.normalize": ("hint()", "F.normalize(tx)"),
    **dict.fromkeys(("ops.sigmoid_cross_entropy", "ops.sigmoid_binary_cross_entropy"), ("hint()", "F.binary_cross_entropy_with_logits(tlogits, ttargets)")),
    **dict.fromkeys(("ops.softmax_cross_entropy_with_integer_labels", "ops.sparse_categorical_crossentropy"), CROSS_ENTROPY),
    **dict.fromkeys((f"ops.{name}" for name in ("scatter", "scatter_add", "index_add", "segment_sum")), ("hint()", "torch.zeros(4, 6).index_add(0, trows, tx[:2])")),
    "ops.diag": ("hint()", "tsquare.diag()"), "ops.trace": ("hint()", "tsquare.trace()"), "ops.shape": ("hint()", "tuple(tx.shape)"),
    **dict.fromkeys(("ops.size", "ops.numel"), ("hint()", "tx.numel()")), "ops.stop_gradient": SAME, "ops.detach": SAME,
    **dict.fromkeys(("ops.cond", "ops.select"), ("hint()", "torch.where(tmask, tx, ty)")),
    "optim.adam": ("by_optimizer(hint())", "updated(torch.optim.Adam, lr=1e-3)"), "optim.adamw": ("by_optimizer(hint())", "updated(torch.optim.AdamW, lr=1e-3)"),
    "optim.sgd": ("by_optimizer(hint())", "updated(torch.optim.SGD, lr=0.1)"), **dict.fromkeys(("optim.chain", "optim.clip_by_global_norm", "optim.clip_grad_norm_"), CLIPPED),
    "optim.apply_updates": UPDATE, "optim.ReduceLROnPlateau": ("hint()[0]['w']", "updated(torch.optim.Adam, lr=rate)"),
    "optim.MultiSteps": ("hint().mean(hint().add(hint().init(params), params))['w']", "tw"),
    **dict.fromkeys((f"optim.{name}" for name in ("EMA", "ExponentialMovingAverage", "ema", "swa_utils")), ("hint().init(params)['w']", "tw")),
    "optim.ExponentialLR": (RATES, "rates(torch.optim.lr_scheduler.ExponentialLR, gamma=0.999)"),
    **dict.fromkeys(("optim.OneCycleLR", "optim.warmup_cosine_decay_schedule"), WARMED_COSINE),
    "optim.cosine_decay_schedule": (RATES, "rates(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=updates)"),
    **dict.fromkeys((f"optim.{name}" for name in ("Adamax", "NAdam", "RAdam", "Adadelta", "Lion", "Lamb", "LAMB")), NEAR),
    **dict.fromkeys(("data.DataLoader", "data.TensorDataset", "data.Dataset"), BATCH), "data.random_split": ("[len(part) for part in hint()]", "[3, 1]"),
    **{f"init.{name}": ("initial(hint()).shape", "(6, 3)") for name in pytorch_names.OF_INIT},
    **dict.fromkeys(("stream.normal", "stream.randn", "stream.standard_normal"), ("hint().shape, hint().min() < 0", "torch.randn(4, 6).shape, True")),
    **dict.fromkeys(("stream.random", "stream.rand"), ("hint().shape, 0 <= hint().min() < 1", "torch.rand(4, 6).shape, True")),
    "stream.randint": ("hint().shape, hint().dtype == np.int64", "torch.randint(5, (4, 6)).shape, True"),
    **dict.fromkeys(("stream.shuffle", "stream.randperm"), ("np.sort(hint(), axis=0)", "tx.sort(0).values")),
    "stream.bernoulli": ("np.unique(hint())", "torch.bernoulli(torch.full((4, 60), 0.5)).unique()"),
    "stream.choice": ("hint().shape, hint(1).shape, hint(2) in (0, 1)", "(3,), (3,), True"), "stream.multinomial": ("hint() in (0, 1)", "True"),
    "stream.split": ("hint().name", "'noise.part'"),
    **dict.fromkeys(("duoln.no_grad", "duoln.inference_mode", "duoln.enable_grad", "module.requires_grad_"),
                    ("hint()[1]['w']", GRADIENT[1])),
    "duoln.manual_seed": ("hint()['w'].shape, hint(1).uniform(3).shape", "tw.shape, torch.rand(3).shape"),
    **dict.fromkeys(("duoln.grad", "duoln.autograd", "tensor.backward", "tensor.grad", "tensor.requires_grad", "tensor.requires_grad_",
                     "module.zero_grad", "optimizer.zero_grad", "argument.requires_grad", "argument.retain_graph"), GRADIENT),
    "duoln.from_numpy": ("hint()", "torch.from_numpy(array)"), "duoln.as_tensor": ("hint()", "torch.as_tensor(values)"),
    "ops.tensor": ("hint()", "torch.tensor(values)"), "cat": ("hint()", "torch.cat((tx, ty))"),
    **dict.fromkeys(("duoln.device", "duoln.cuda"), ("hint() is x.backend", "torch.device('cpu') == tx.device")),
    "tensor.device": ("type(hint())", "type(tx.device.type)"),
    "duoln.utils": ("hint()(0)['x'].shape", "next(iter(torch.utils.data.DataLoader(torch.from_numpy(array), 2))).shape"),
    "duoln.jit": ("hint()(x)", "2 * tx"), "duoln.float32": ("hint()", "torch.tensor(array, dtype=torch.float32)"),
    "duoln.int32": ("hint()", "tindices.to(torch.int32)"),
    "functional": ("hint()", "F.relu(tx)"),
    **dict.fromkeys(("nn.CrossEntropyLoss", "ops.cross_entropy"), CROSS_ENTROPY), **dict.fromkeys(("nn.NLLLoss", "ops.nll_loss"), OF_LOGS),
    **dict.fromkeys(("nn.BCEWithLogitsLoss", "ops.binary_cross_entropy_with_logits"), ("hint()", "F.binary_cross_entropy_with_logits(tlogits, ttargets)")),
    **dict.fromkeys(("nn.BCELoss", "ops.binary_cross_entropy"), ("hint()", "F.binary_cross_entropy(tlogits.sigmoid(), ttargets)")),
    **{name: ("hint()", f"F.{function}(tpredictions, ttargets)") for kind, function in (("MSELoss", "mse_loss"), ("L1Loss", "l1_loss"), ("HuberLoss", "huber_loss"))
       for name in (f"nn.{kind}", f"ops.{function}")},
    "ops.soft_cross_entropy": ("hint()", "F.cross_entropy(tlogits, tprobabilities)"),
    "nn.KLDivLoss": ("hint()", "F.kl_div(tlog_predictions, ttargets, reduction='none').mean()"),
    **dict.fromkeys(("ops.dropout", *(f"nn.{name}" for name in ("Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"))), DROPOUT),
    "nn.BatchNorm1d": ("of_layer(hint(), x)", "torch.nn.BatchNorm1d(6)(tx)"),
    "nn.BatchNorm2d": ("of_layer(hint(), images)", "last(torch.nn.BatchNorm2d(6)(first(timages)))"),
    "nn.InstanceNorm1d": ("of_layer(hint(), sequence)", "last(torch.nn.InstanceNorm1d(6)(first(tsequence)))"),
    "nn.InstanceNorm2d": ("of_layer(hint(), images)", "last(torch.nn.InstanceNorm2d(6)(first(timages)))"),
    "nn.InstanceNorm3d": ("of_layer(hint(), volumes)", "last(torch.nn.InstanceNorm3d(6)(first(tvolumes)))"),
    **{f"nn.{kind}Pool1d": ("hint()", f"last(torch.nn.{kind}Pool1d(2)(first(tsequence)))") for kind in ("Max", "Avg")},
    **{f"nn.{kind}Pool2d": ("hint()", f"last(torch.nn.{kind}Pool2d(2)(first(timages)))") for kind in ("Max", "Avg")},
    **dict.fromkeys(("nn.Parameter", "module.register_parameter"), ("hint()['weights'](None, None)['w']", "torch.nn.Parameter(torch.zeros(3)).data")),
    "nn.ModuleList": ("len(hint()['self'].children())", "len(torch.nn.ModuleList([torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)]))"),
    "nn.ModuleDict": ("[*hint()['self'].init(0)['layers']]", "[*torch.nn.ModuleDict({'one': torch.nn.Linear(6, 6), 'two': torch.nn.Linear(6, 6)})]"),
    "nn.utils": ("hint().clip({'w': w * 100.0})['w']", "clipped(tw * 100)"), "nn.Bilinear": ("hint()", "F.bilinear(tx, ty, tweight, tbias)"),
    "nn.MultiheadAttention": ("hint()(read(theirs.attention, hint()), sequence)", "theirs.attention(tsequence, tsequence, tsequence)[0]"),
    "nn.TransformerEncoderLayer": ("hint()(read(theirs.block, hint()), sequence)", "theirs.block(tsequence)"),
    "unsqueeze": ("hint()", "tx.unsqueeze(0)"), "chunk": ("hint()", "tx.chunk(2)"), "expand": ("hint()", "trow.expand(4, 6)"),
    "gather": ("hint()", "tx.gather(1, tindices)"), "masked_fill": ("hint()", "tx.masked_fill(tmask, 0.0)"), "norm": ("hint()", "tx.norm()"),
    "permute": ("hint()", "tx.permute(1, 0)"), "transpose": ("hint()", "tx.transpose(0, 1)"), "flatten": ("hint()", "tx.flatten()"),
    **dict.fromkeys(("mm", "matmul", "dot", "bmm"), ("hint()", "tx @ tw")), "view": ("hint()", "tx.view(2, 12)"),
    "index_select": ("hint()", "tx.index_select(0, trows)"), "power": ("hint()", "tx.pow(2.0)"), "cumsum": ("hint()", "tx.cumsum(0)"),
    "repeat_interleave": ("hint()", "tx.repeat_interleave(2, dim=0)"),
    **dict.fromkeys(("optim.lr_scheduler", "optim.StepLR", "optimizer.param_groups"), STEPS),
    "optim.MultiStepLR": ("[hint().rate_at(k) for k in (0, 99, 100, 250)]", "rates(torch.optim.lr_scheduler.MultiStepLR, milestones=[100])"),
    "optim.LinearLR": ("[hint().rate_at(k) for k in (0, 99, 100, 250)]", "rates(torch.optim.lr_scheduler.LinearLR, start_factor=0.1, total_iters=9)"),
    "optim.SequentialLR": ("[hint().rate_at(k) for k in (0, 99, 100, 250)]", "rates(in_turn)"),
    "optim.CosineAnnealingLR": ("[hint().rate_at(k) for k in (0, 99, 100, 250)]", "rates(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=updates)"),
    "optim.RMSprop": ("by_optimizer(hint())", "updated(torch.optim.RMSprop)"),
    **dict.fromkeys(("optim.LBFGS", "optim.Adagrad"), ("hint().init(params).keys() >= set()", "True")),  # PyTorch's own has no counterpart
    "tensor.detach": ("duoln.value_and_grad(lambda x: ops.sum(hint(x=x) * x))(x)[1]", "tx"),
    "tensor.cuda": SAME, "tensor.to": SAME, "tensor.cpu": SAME, "tensor.t": ("hint()", "tx.t()"), "tensor.squeeze": ("hint()", "trow.squeeze()"),
    "tensor.contiguous": SAME, "tensor.clone": SAME, "tensor.copy": SAME, "tensor.float": ("hint(x=indices)", "tindices.float()"),
    **dict.fromkeys(("tensor.long", "tensor.int"), ("hint()", "tx.int()")), "tensor.bool": ("hint()", "tx.bool()"),
    "tensor.double": ("hint()", "tx.double()"), "tensor.half": ("hint()", "tx.half()"),
    **{f"tensor.{name}": ("hint()", f"tx.{name}()") for name in ("exp", "tanh", "sigmoid", "relu", "abs", "var", "std", "dim", "numel")},
    **{f"tensor.{name}": ("hint(x=positive)", f"tpositive.{name}()") for name in ("log", "sqrt")}, "tensor.softmax": ("hint()", "tx.softmax(-1)"),
    "tensor.log_softmax": ("hint()", "tx.log_softmax(-1)"), "tensor.argmax": ("hint()", "tx.argmax(-1)"), "tensor.pow": ("hint()", "tx.pow(2.0)"),
    **dict.fromkeys(("tensor.clamp", "tensor.clip"), ("hint()", "tx.clamp(0.0, 1.0)")),
    "tensor.add": ("hint()", "tx.add(ty)"), "tensor.mul": ("hint()", "tx.mul(ty)"), "tensor.split": ("hint()", "tx.split(2)"),
    "tensor.repeat": ("hint()", "tx.repeat(2, 1)"), "tensor.add_": ("hint()['x']", "tx.clone().add_(ty)"), "tensor.mul_": ("hint()['x']", "tx.clone().mul_(ty)"),
    "tensor.copy_": ("hint()['x']", "tx.clone().copy_(ty)"), "tensor.zero_": ("hint()['x']", "tx.clone().zero_()"),
    "tensor.fill_": ("hint()['x']", "tx.clone().fill_(2.0)"),
    **dict.fromkeys(("module.parameters", "module.state_dict", "module.load_state_dict"), PARAMS),
    "module.named_parameters": ("[name for name, _ in hint(1)]", "['w']"),
    **dict.fromkeys(("module.train", "module.eval", "argument.track_running_stats"), NO_MODE), "argument.momentum": ("by_optimizer(hint())", "updated(torch.optim.SGD, lr=0.1, momentum=0.9)"),
    **dict.fromkeys(("module.to", "module.cuda", "module.cpu"), SAME), **dict.fromkeys(("module.half", "duoln.amp", "duoln.autocast"), ("hint()['w']", "tw.half()")),
    "module.apply": ("hint()['adapted'](model, params, None) is params", "True"),
    "module.register_buffer": ("hint() and vars(self)['scale']", "torch.ones(3)"),
    "module.named_modules": ("[path for path, _ in hint()]", "[path for path, _ in torch.nn.Linear(6, 3).named_modules()]"),
    "module.register_forward_hook": ("hint() and told", "['']"), "module.forward": ("hint()", "tx @ tw"),
    **dict.fromkeys(("optimizer.step", "optimizer.add_param_group", "optimizer.apply_updates", "optimizer.apply_gradients", "optimizer.minimize"), UPDATE),
    **dict.fromkeys(("optimizer.state_dict", "optimizer.load_state_dict", "argument.params"), SLOTS),
    **{f"recurrent.{name}": ("of_layer(hint(), features)[0].shape", "torch.nn.LSTM(8, 16)(tfeatures)[0].shape") for name in (
        "bias", "num_layers", "hidden_size", "input_size", "nonlinearity", "forget_bias", "update_gate")},
    "recurrent.proj_size": ("of_layer(hint(), states).shape", "torch.Size((5, 2, 4))"),
    "argument.weight_decay": ("w - rate * duoln.value_and_grad(lambda w: ops.sum(w * gradient) + hint(w=w))(w)[1]", "updated(torch.optim.SGD, lr=rate, weight_decay=decay)"),
    "argument.lengths": ("hint()", "torch.arange(len(tx)).unsqueeze(1) < torch.tensor([2, 1])"),
    "argument.betas": ("by_optimizer(hint())", "updated(torch.optim.Adam, betas=(0.9, 0.999))"),
    "argument.maximize": ("duoln.value_and_grad(lambda params: hint(params=params))(params)[1]['w']", f"-{GRADIENT[1]}"),
    **dict.fromkeys(("argument.reduction", "argument.size_average"), ("hint(), hint(1)", "F.binary_cross_entropy_with_logits(tlogits, tzero_or_one), F.binary_cross_entropy_with_logits(tlogits, tzero_or_one, reduction='sum')")),
    "argument.ignore_index": ("hint(losses=ops.softmax_cross_entropy(logits, labels), counted=(labels != 1).astype('float32'))", "F.cross_entropy(tlogits, tlabels, ignore_index=1)"),
    "argument.pos_weight": ("hint(targets=zero_or_one)", "F.binary_cross_entropy_with_logits(tlogits, tzero_or_one, pos_weight=torch.tensor(3.0), reduction='none')"),
    "python.xor": ("hint()", "tmask ^ tother"), "python.lshift": ("hint()", "tindices << 2"), "python.rshift": ("hint()", "tindices >> 2"),
}


def check_of(hint):
    return CHECKS.get(hint) or CHECKS[hint.partition(".")[2]]


def code_of(hint):
    """The lines of code of a hint, for the backend that is everywhere."""
    return [code.replace('"cupy"', '"numpy"') for code in re.findall(r"`([^`]+)`", HINTS[hint])]


class Model(nn.Module):
    def weights(self, rng):
        return {"w": np.full((6, 3), 0.5, np.float32)}

    def __call__(self, params, x):
        return x @ params["w"]


class Bare(nn.Module):
    """A module with the attributes that it gets."""


def arrays():
    """By name what both sides get."""
    rng = np.random.default_rng(0)
    floats = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in {
        "x": (4, 6), "y": (4, 6), "weight": (3, 6, 6), "bias": (3,), "logits": (4, 3), "predictions": (4, 3), "images": (2, 4, 4, 6),
        "sequence": (2, 4, 6), "volumes": (2, 2, 2, 2, 6), "features": (5, 2, 8), "row": (1, 6), "gradient": (6, 3),
        "square": (3, 3)}.items()}
    targets = rng.random((4, 3), np.float32)
    return {**floats, "w": np.full((6, 3), 0.5, np.float32), "positive": np.abs(floats["x"]) + 0.1, **dict.fromkeys(("targets", "probabilities"), targets / targets.sum(1, keepdims=True)),
            "log_predictions": np.log(targets), "zero_or_one": (targets > 0.5).astype(np.float32), "mask": floats["x"] > 0, "other": floats["y"] > 0,
            "indices": rng.integers(-6, 6, (4, 6)) % 6, "labels": np.array([0, 1, 2, 1]), "rows": np.array([2, 0])}


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What a line of either side may name."""
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("hints")
    given = arrays()
    ours = {name: duoln.tensor(array, "numpy") for name, array in given.items()}
    x, logits = ours["x"], ours["logits"]
    x_backend = x.backend
    their = {f"t{name}": torch.from_numpy(array.copy()) for name, array in given.items()}
    their["tw"].requires_grad_()
    model, optimizer, params, told = Model(), optim.Adam(0.1), {"w": ours["w"]}, []
    theirs = Bare()
    theirs.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True).eval()
    theirs.block = torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()

    def read(module, like):
        safetensors.save_file({key: value.contiguous() for key, value in module.state_dict().items()}, folder / "theirs")
        return duoln.load_pytorch(folder / "theirs", like, "numpy")

    def updated(kind, **settings):
        p = torch.nn.Parameter(their["tw"].detach().clone())
        p.grad = their["tgradient"].clone()
        kind([p], **settings).step()
        return p

    def rates(kind, **settings):
        scheduler, all_rates = kind(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3), **settings), []
        for _ in range(251):
            all_rates.append(scheduler.get_last_lr()[0])
            scheduler.optimizer.step()
            scheduler.step()
        return [all_rates[k] for k in (0, 99, 100, 250)]

    def in_turn(optimizer):
        several = torch.optim.lr_scheduler
        return several.SequentialLR(optimizer, [several.LinearLR(optimizer, 0.1, total_iters=9), several.CosineAnnealingLR(optimizer, 300)], [9])

    def dropped(layer, masks):
        x = ops.ones((1000,), x_backend)
        return layer(nn.with_masks({}, masks(0, {}, x)), x).numpy()

    def clipped(gradient):
        p = torch.nn.Parameter(torch.zeros(6, 3))
        p.grad = gradient.detach()
        torch.nn.utils.clip_grad_norm_([p], 5.0)
        return p.grad

    return {
        **ours, **their, "torch": torch, "F": torch.nn.functional, "np": np, "math": math, "duoln": duoln, "nn": nn, "ops": ops, "optim": optim,
        "array": given["x"], "values": [[1.0, 2.0]], "width": 6, "heads": 2, "hidden": 8, "keep": 0.5, "rate": 0.1, "decay": 0.01, "update": 0,
        "updates": 300, "n": 2, "lengths": [2, 1], "pos_weight": 3.0, "path": folder / "ours.safetensors", "params": params, "gradients": {"w": ours["gradient"]},
        "model": model, "optimizer": optimizer, "slots": optimizer.init(params), "self": Bare(), "told": told, "losses": ops.bce_with_logits(logits, ours["zero_or_one"]),
        "tell": lambda path, layer, output: told.append(path), "batches": [x], "batch": {"mask": x}, "step": lambda x, y=None: x * 2.0, 
        "loss": lambda params, x: ops.mean(ops.square(model(params, x))), "layers": [nn.Linear(6, 6), nn.Linear(6, 6)],
        "layers_by_name": {"one": nn.Linear(6, 6), "two": nn.Linear(6, 6)}, "log_probabilities": ops.log_softmax(logits),
        "counted": ours["zero_or_one"], "states": duoln.tensor(np.zeros((5, 2, 16), np.float32), "numpy"),
        "of_layer": lambda layer, x: layer(duoln.to_tensors(layer.init(0), "numpy"), x), "read": read, "theirs": theirs, "updated": updated,
        "rates": rates, "in_turn": in_turn, "dropped": dropped, "clipped": clipped, "first": lambda t: t.movedim(-1, 1), "last": lambda t: t.movedim(1, -1),
        "function": lambda x: x * 2.0, "stream": Stream(0, "noise"), "params_of_dense": {"weight": ours["w"], "bias": ops.zeros((3,), x_backend)},
        "initial": lambda initializer: nn.Linear(6, 3, weight_init=initializer).init(0)["weight"],
        "by_optimizer": lambda optimizer: optimizer.update({"w": copy.deepcopy(ours["w"])}, {"w": ours["gradient"]}, optimizer.init(params), optimizer.rate_at(0))[0]["w"],
    }


def run(code, names):
    """The value of an expression, or the names after a statement."""
    space = dict(names)
    if isinstance(ast.parse(code).body[0], ast.Expr):
        return eval(code, space)
    exec(code, space)
    return space


def plain(value):
    """A value in the form in which both sides are compared; integers of one width."""
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "detach"):
        value = value.detach()
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    return array.astype(np.int32) if array.dtype == np.int64 else array


def compare(ours, theirs):
    assert isinstance(ours, list) == isinstance(theirs, list)
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            compare(*pair)
        return
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    if ours.dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", [name for name in HINTS if name.partition(".")[0] in OWNERS])
def test_a_name_that_duoln_has_not_is_an_error_with_its_hint(name):
    table, _, attribute = name.partition(".")
    check_error(AttributeError, lambda: getattr(OWNERS[table], attribute), f"has no attribute '{attribute}'", HINTS[name])
    assert not hasattr(OWNERS[table], attribute) and (table == "stream" or attribute not in dir(OWNERS[table]))


def test_every_hint_has_code():
    assert {hint for hint in HINTS if not code_of(hint)} == WITHOUT_CODE
    used = {name for hint in HINTS if hint not in WITHOUT_CODE for name in (hint, hint.partition(".")[2]) if name in CHECKS}
    assert used == CHECKS.keys()


@pytest.mark.peers
@pytest.mark.parametrize("name", sorted(HINTS.keys() - WITHOUT_CODE))
def test_a_hint_is_what_pytorch_does(name, names, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    names["told"].clear()
    lines = code_of(name)
    with np.errstate(invalid="ignore"):  # the logarithm of what is below 0
        for line in lines:
            run(line, names)
    names["told"].clear()
    ours, theirs = check_of(name)
    with_hint = {**names, "hint": lambda k=0, **others: run(lines[k], {**names, **others})}
    compare(plain(eval(ours, with_hint)), plain(eval(theirs, names)))
