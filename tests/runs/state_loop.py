"""A training loop of one's own that saves its state: `python state_loop.py FOLDER UPDATES` prints a digest of its end."""

import hashlib
import sys

import numpy as np

import duoln
from duoln import nn, ops, optim
from duoln.randomness import Stream

folder, updates = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer, dropout = optim.AdamW(optim.linear_warmup(5, optim.cosine(0.05, updates))), nn.DropoutMasks(model, seed=1)
params = duoln.to_tensors(model.init(0), "numpy")
start = {"update": 0, "params": params, "slots": optimizer.init(params), "noise": Stream(3, "noise"), "seen": np.zeros(2, np.int64)}
state = duoln.load_state(folder, "numpy") or start


@duoln.compile
def train_step(params, slots, masks, x, rate):
    def loss(p):
        return ops.mean(ops.square(model(nn.with_masks(p, masks), x)))

    value, gradients = duoln.value_and_grad(loss)(params)
    return (*optimizer.update(params, gradients, slots, rate), value)


for update in range(state["update"], updates):
    x = duoln.tensor(state["noise"].gaussian((16, 3)).astype(np.float32), "numpy")
    rate = duoln.tensor(np.float32(optimizer.rate_at(update)), "numpy")
    params, slots, _ = train_step(state["params"], state["slots"], dropout(update, state["params"], x), x, rate)
    state = {"update": update + 1, "params": params, "slots": slots, "noise": state["noise"], "seen": state["seen"] + 16}
    duoln.save_state(folder, **state)
    print(update + 1, flush=True)
digest = hashlib.sha256()
for path, leaf in duoln.tree.items({name: state[name] for name in ("params", "slots", "seen")}):
    digest.update(path.encode() + (leaf if isinstance(leaf, np.ndarray) else leaf.numpy()).tobytes())
print(digest.hexdigest(), state["noise"].position)
