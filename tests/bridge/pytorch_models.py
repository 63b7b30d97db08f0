"""Models that are generated twice, in PyTorch with channels first and here with channels last, with the order of features between them.

Each value knows where PyTorch has each of its features, so that the questions of `load_pytorch` have true answers.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from duoln import nn, ops

T, flatten = torch.nn, partial(nn.Flatten(), {})


class Value:
    """An intermediate result.

    Attributes:
        shape: here, without the batch.
        order: PyTorch's place of each feature.
        channels: of the flattened images that are among the features, 1 where PyTorch has the same order, and 0 without any; None if
            one number does not say it.
        maker: the layer whose outputs it is.
    """

    def __init__(self, key, shape, order=None, channels=0, maker=None):
        self.key, self.shape, self.maker, self.channels = key, shape, maker, channels
        self.order = np.arange(shape[-1]) if order is None else order


class Theirs(T.Module):
    def __init__(self, layers, steps, outputs):
        super().__init__()
        for name, layer in layers:
            self.add_module(name, layer)
        self.steps, self.outputs = steps, outputs

    def forward(self, **values):
        for key, takes, function, _ in self.steps:
            values[key] = function(self, *(values[k] for k in takes))
        return [values[k] for k in self.outputs]


class Ours(nn.Module):
    def __init__(self, layers, steps, outputs):
        for name, layer in layers:
            setattr(self, name, layer)
        self.steps, self.outputs = steps, outputs

    def children(self):
        return {name: part for name, part in vars(self).items() if isinstance(part, nn.Module)}

    def __call__(self, params, image, numbers):
        values = {"image": image, "numbers": numbers}
        for key, takes, _, function in self.steps:
            values[key] = function(self, params, *(values[k] for k in takes))
        return [values[k] for k in self.outputs]


def fill(module, seed=0):
    """A module with parameters and statistics of which every value counts, as it is after training."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) - 0.4 if value.ndim > 1 else torch.rand_like(value) + 0.1)
    return module.eval()


def by_channels(width, channels):
    return np.arange(width).reshape(channels, -1).T.reshape(-1)


def in_order(width, channels):
    """PyTorch's place of each feature, and what says it, where it has channels first."""
    return by_channels(width, channels), channels if 1 < channels < width else 0


class Generated:
    """One architecture, drawn from a seed.

    Attributes:
        theirs, ours: the two models.
        inputs: the image, channels last, and the numbers.
        flattened, unflattened: what is true of the features that a layer takes, and of its outputs, by the layers' names: the
            channels, or PyTorch's place of each feature.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.layers, self.steps = {}, []
        self.flattened, self.unflattened = {}, {}
        self.is_row = self.draw(4) == 0
        sizes = (int(self.rng.integers(5, 9)),) if self.is_row else (int(self.rng.integers(5, 8)), int(self.rng.integers(5, 8)))
        channels = int(self.rng.integers(1, 4))
        image, numbers = Value("image", (*sizes, channels)), Value("numbers", (5,))
        outputs = self.whole(image, numbers)
        names = list(self.layers)
        self.theirs = Theirs([(n, self.layers[n][0]()) for n in names], self.steps, [v.key for v in outputs])
        self.rng.shuffle(names)
        self.ours = Ours([(n, self.layers[n][1]) for n in names], self.steps, [v.key for v in outputs])
        fill(self.theirs, seed)
        self.inputs = {"image": self.rng.standard_normal((2, *image.shape)).astype(np.float32),
                       "numbers": self.rng.standard_normal((2, 5)).astype(np.float32)}
        self.outputs = outputs

    def draw(self, count):
        return int(self.rng.integers(count))

    def right(self):
        """PyTorch's outputs, images among them with channels last."""
        given = {k: torch.from_numpy(np.moveaxis(x, -1, 1).copy() if x.ndim > 2 else x) for k, x in self.inputs.items()}
        with torch.no_grad():
            results = [y.numpy() for y in self.theirs(**given)]
        return [np.moveaxis(y, 1, -1) if len(v.shape) > 1 else y[:, v.order] for y, v in zip(results, self.outputs, strict=True)]

    # Parts ------------------------------------------------------------------------------------------
    def step(self, takes, shape, theirs, ours, order=None, channels=0, maker=None):
        """Another value, computed from values by the two functions."""
        key = f"v{len(self.steps)}"
        self.steps.append((key, [v.key for v in takes], lambda m, *xs: theirs(*xs), lambda m, p, *xs: ours(*xs)))
        return Value(key, shape, order, channels, maker)

    def layer(self, x, theirs, ours, shape, keeps=False, around=(lambda f, x: f(x), lambda f, x: f(x)), has_outputs=False):
        """A value computed by a layer, inside of what moves axes around it."""
        name = f"{'abcdefgh'[self.draw(8)]}{len(self.layers)}"
        self.layers[name] = theirs, ours
        self.flattened[name] = x.order if x.channels is None else max(x.channels, 1)
        key = f"v{len(self.steps)}"
        self.steps.append((key, [x.key], lambda m, x: around[0](getattr(m, name), x),
                           lambda m, p, x: around[1](lambda x: getattr(m, name)(p[name], x), x)))
        return Value(key, shape, *((x.order, x.channels) if keeps else (None, 0)), name if has_outputs else None)

    def same(self, x, theirs, ours):
        return self.step([x], x.shape, theirs, ours, x.order, x.channels, x.maker)

    # Images, or rows of a sequence under a Conv1d -----------------------------------------------------
    def convolved(self, x, channels=None):
        channels = channels or int(self.rng.choice([2, 3, 4, 6]))
        size = min(1 + self.draw(3), *x.shape[:-1])
        same = self.draw(2) == 0 and size % 2 == 1
        shape = (*(n if same else n - size + 1 for n in x.shape[:-1]), channels)
        groups = 2 if channels % 2 == 0 and x.shape[-1] % 2 == 0 and self.draw(2) else 1
        settings = {"padding": size // 2 if same else 0, "groups": groups}
        return self.layer(x, lambda: (T.Conv1d if self.is_row else T.Conv2d)(x.shape[-1], channels, size, **settings),
                          (nn.Conv1d if self.is_row else nn.Conv2d)(x.shape[-1], channels, size, **settings), shape)

    def on_image(self, x):
        channels, row = x.shape[-1], self.is_row
        kind = self.draw(9)
        if kind == 0:
            return self.convolved(x)
        if kind == 1:
            return self.layer(x, lambda: (T.BatchNorm1d if row else T.BatchNorm2d)(channels), nn.BatchNorm(channels), x.shape)
        if kind == 2:
            return self.layer(x, lambda: T.GroupNorm(1, channels), nn.GroupNorm(1, channels), x.shape)
        if kind == 3:
            return self.same(x, torch.relu, ops.relu)
        if kind == 4 and min(x.shape[:-1]) > 3:
            shape = (*(n // 2 for n in x.shape[:-1]), channels)
            return self.step([x], shape, (lambda x: F.max_pool1d(x, 2)) if row else (lambda x: F.max_pool2d(x, 2)),
                             (lambda x: ops.max_pool1d(x, size=2)) if row else (lambda x: ops.max_pool2d(x, size=2)))
        if kind == 5:  # squeeze and excitation
            gate = self.pooled(x)
            for width in (4, channels):
                gate = self.linear(gate, width)
            ones = (1,) * (len(x.shape) - 1)
            return self.step([x, gate], x.shape, lambda x, g: x * torch.sigmoid(g).reshape(*g.shape, *ones),
                             lambda x, g: x * ops.sigmoid(g).reshape(g.shape[0], *ones, g.shape[1]))
        if kind == 6:  # a residual branch
            y = self.layer(x, lambda: (T.Conv1d if row else T.Conv2d)(channels, channels, 3, padding=1),
                           (nn.Conv1d if row else nn.Conv2d)(channels, channels, 3, padding=1), x.shape)
            return self.step([x, y], x.shape, torch.add, ops.add)
        if kind == 7:  # a norm over the channels, or a Linear at each position
            around = (lambda f, x: f(x.movedim(1, -1)).movedim(-1, 1), lambda f, x: f(x))
            if self.draw(2):
                return self.layer(x, lambda: T.LayerNorm(channels), nn.LayerNorm(channels), x.shape, around=around)
            return self.layer(x, lambda: T.Linear(channels, 3), nn.Linear(channels, 3), (*x.shape[:-1], 3), around=around)
        y = self.convolved(x, x.shape[-1])
        if y.shape != x.shape:
            return y
        return self.step([x, y], (*x.shape[:-1], 2 * channels), lambda x, y: torch.cat([x, y], 1), lambda x, y: ops.concat(x, y, axis=-1))

    def pooled(self, x):
        theirs, ours = tuple(range(2, len(x.shape) + 1)), tuple(range(1, len(x.shape)))
        return self.step([x], (x.shape[-1],), lambda x: x.mean(theirs), lambda x: ops.mean(x, axis=ours))

    def flat(self, x):
        """All features of an image in a row, in PyTorch's order or in ours."""
        width, kind = int(np.prod(x.shape)), self.draw(5)
        if kind == 0:
            return self.pooled(x)
        if kind == 1 and not self.is_row:  # the mean of the rows
            y, width = x.shape[1:], int(np.prod(x.shape[1:]))
            return self.step([x], (width,), lambda x: x.mean(2).flatten(1), lambda x: flatten(ops.mean(x, axis=1)),
                             *in_order(width, y[-1]))
        if kind == 2:
            return self.step([x], (width,), lambda x: x.movedim(1, -1).flatten(1), flatten, None, 1)
        ours = flatten if kind == 3 else lambda x: x.reshape(x.shape[0], -1)
        return self.step([x], (width,), lambda x: x.flatten(1), ours, *in_order(width, x.shape[-1]))

    def sequence(self, x):
        """Time steps of an image's columns, of its positions, or of a row; then what walks along them; then features in a row."""
        channels = x.shape[-1]
        if self.is_row:
            x = self.step([x], x.shape, lambda x: x.mT, lambda x: x)
        elif self.draw(2):
            shape = (x.shape[1], x.shape[0] * channels)
            turned = self.draw(2)
            x = self.step([x], shape, lambda x: (x.permute(0, 3, 2, 1) if turned else x.permute(0, 3, 1, 2)).flatten(2),
                          lambda x: ops.permute_dims(x, (0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1),
                          *((None, 1) if turned else in_order(shape[1], channels)))
        else:
            x = self.step([x], (x.shape[0] * x.shape[1], channels), lambda x: x.flatten(2).mT, lambda x: x.reshape(x.shape[0], -1, x.shape[-1]))
        steps, width = x.shape
        return self.in_a_row(self.walked(x, steps, width))

    def attended(self, x):
        """Attention of two heads in the model's own code."""
        steps = x.shape[0]

        def theirs(y):
            query, key, value = (part.reshape(-1, steps, 2, 3).transpose(1, 2) for part in y.chunk(3, -1))
            return (torch.softmax(query @ key.mT, -1) @ value).transpose(1, 2).reshape(-1, steps, 6)

        def ours(y):
            query, key, value = (ops.permute_dims(part.reshape(-1, steps, 2, 3), (0, 2, 1, 3)) for part in ops.split(y, 3, axis=-1))
            return ops.permute_dims(ops.softmax(query @ ops.matrix_transpose(key), axis=-1) @ value, (0, 2, 1, 3)).reshape(-1, steps, 6)

        return self.step([self.linear(x, 18)], (steps, 6), theirs, ours)

    def by_steps(self, x):
        """A cell that walks from step to step; the last state, or all of them side by side."""
        steps, width = x.shape
        name = f"cell{len(self.layers)}"
        self.layers[name] = (lambda: T.RNNCell(width, 3)), nn.RNNCell(width, 3)
        self.flattened[name] = x.order if x.channels is None else max(x.channels, 1)
        key, is_last = f"v{len(self.steps)}", self.draw(2)

        def theirs(m, x):
            states = [torch.zeros(2, 3)]
            for t in range(steps):
                states.append(getattr(m, name)(x[:, t], states[-1]))
            return states[-1][:, None] if is_last else torch.stack(states[1:], 1)

        def ours(m, p, x):
            states = [ops.zeros((2, 3), x.backend)]
            for t in range(steps):
                states.extend(getattr(m, name)(p[name], x[:, t], (states[-1],)))
            return ops.expand_dims(states[-1], axis=1) if is_last else ops.stack(states[1:], axis=1)

        self.steps.append((key, [x.key], theirs, ours))
        return Value(key, (1 if is_last else steps, 3))

    def walked(self, x, steps, width):
        kind = self.draw(6)
        if kind == 4:
            return self.attended(x)
        if kind == 5:
            return self.by_steps(x)
        if kind == 0:
            layers = 1 + self.draw(2)
            return self.layer(x, lambda: T.LSTM(width, 4, layers, batch_first=True, bidirectional=True), nn.LSTM(width, 4, layers=layers, bidirectional=True), (steps, 8),
                              around=(lambda f, x: f(x)[0], lambda f, x: ops.permute_dims(f(ops.permute_dims(x, (1, 0, 2)))[0], (1, 0, 2))))
        if kind == 1 and width % 2 == 0:
            return self.layer(x, lambda: T.TransformerEncoderLayer(width, 2, 6, dropout=0.0, batch_first=True, norm_first=True), nn.TransformerBlock(width, 2, 6),
                              x.shape, keeps=True)
        if kind == 2 and width % 2 == 0:
            y = self.layer(x, lambda: T.MultiheadAttention(width, 2, batch_first=True), nn.MultiHeadAttention(width, 2), x.shape, has_outputs=True,
                           around=(lambda f, x: f(x, x, x, need_weights=False)[0], lambda f, x: f(x)))
            return self.added(x, y) if self.draw(2) else y
        return self.linear(x, 4)

    def in_a_row(self, x):
        steps, width = x.shape
        if self.draw(2):
            return self.step([x], (width,), lambda x: x.mean(1), lambda x: ops.mean(x, axis=1), x.order, x.channels)
        order = (np.arange(steps)[:, None] * width + x.order).reshape(-1)
        return self.step([x], (steps * width,), lambda x: x.flatten(1), flatten, order, 1 if x.channels in (0, 1) else None)

    # Features ---------------------------------------------------------------------------------------
    def linear(self, x, width):
        return self.layer(x, lambda: T.Linear(x.shape[-1], width), nn.Linear(x.shape[-1], width), (*x.shape[:-1], width), has_outputs=True)

    def added(self, x, y):
        """The sum, where a layer makes y: its outputs are in the order of x."""
        self.unflattened[y.maker] = x.order if x.channels is None or x.channels > 1 else 1
        return self.step([x, y], x.shape, torch.add, ops.add, x.order, x.channels)

    def on_features(self, x):
        width, kind = x.shape[0], self.draw(5)
        if kind == 0:
            return self.linear(x, int(self.rng.choice([3, 4, width])))
        if kind == 1:
            return self.layer(x, lambda: T.BatchNorm1d(width), nn.BatchNorm(width), x.shape, keeps=True)
        if kind == 2:
            return self.layer(x, lambda: T.LayerNorm(width), nn.LayerNorm(width), x.shape, keeps=True)
        if kind == 3:
            return self.added(x, self.linear(x, width))
        return self.same(x, torch.tanh, ops.tanh)

    def beside(self, x, y):
        order = np.concatenate([x.order, x.shape[0] + y.order])
        channels = x.channels if y.channels in (0, x.channels) else y.channels if x.channels == 0 else None
        return self.step([x, y], order.shape, lambda x, y: torch.cat([x, y], 1), lambda x, y: ops.concat(x, y, axis=1), order,
                         channels)

    def decoded(self, x):
        """An image again."""
        channels, side = int(self.rng.choice([1, 2, 3])), 4
        shape = (side,) * (1 if self.is_row else 2) + (channels,)
        width = int(np.prod(shape))
        x = self.linear(x, width)
        makers = [(x.maker, self.unflattened)]
        if self.draw(2):
            x = self.layer(x, lambda: T.BatchNorm1d(width), nn.BatchNorm(width), x.shape)
            makers.append((list(self.layers)[-1], self.unflattened))
        is_first = self.draw(3) > 0
        for maker, words in makers:
            words[maker] = channels if is_first else 1
        theirs = (lambda x: x.reshape(x.shape[0], channels, *shape[:-1])) if is_first else (lambda x: x.reshape(x.shape[0], *shape).movedim(-1, 1))
        x = self.step([x], shape, theirs, lambda x: x.reshape(x.shape[0], *shape))
        return self.convolved(x) if self.draw(2) else self.same(x, torch.tanh, ops.tanh)

    def whole(self, image, numbers):
        x = self.convolved(image)
        for _ in range(self.draw(4)):
            x = self.on_image(x)
        y = self.sequence(x) if self.draw(3) == 0 else self.flat(x)
        if self.draw(3) == 0:
            y = self.beside(y, numbers) if self.draw(2) else self.beside(numbers, y)
        elif self.draw(4) == 0:
            y = self.beside(y, self.flat(self.on_image(x)))
        for _ in range(self.draw(3)):
            y = self.on_features(y)
        outputs = [self.linear(y, 3) for _ in range(1 + self.draw(2))]
        return [*outputs, self.decoded(y)] if self.draw(3) == 0 else outputs
