"""The page of the language model: a training that was killed ends with the same bits, and what it keeps is the best one."""

import re

import numpy as np
from test_docs import text_of

import duoln
from duoln import tree

SHORT = {"UPDATES, HALF = 240": "UPDATES, HALF = 12", "% 60 == 0": "% 4 == 0", "len(symbols), 128)": "len(symbols), 16)",
         '"text-model", 150)': '"text-model", 6)', "linear_warmup(50": "linear_warmup(5", "UPDATES - 50": "UPDATES - 5",
         "write(200)": "write(20)"}


def test_a_killed_training_goes_on_to_the_same_bits_and_the_best_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    text = text_of("duoln/docs/language_model.md")
    for long, short in SHORT.items():
        assert text.count(long) == 1, long
        text = text.replace(long, short)
    page = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, page)
    told = re.findall(r"^update (\d+): [0-9.]+ nats", capsys.readouterr().out, re.MULTILINE)
    assert told == ["4", "8", "12"], "the second call begins after update 4"
    killed, whole = page["train"]("text-model", 12), page["train"]("whole", 12)
    for a, b in zip(tree.leaves(killed), tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    best = duoln.to_tensors(duoln.load("whole/best.safetensors"), page["backend"])
    assert page["validate"](best) == duoln.load_state("whole/states", page["backend"])["best"].item()
    assert len(page["write"](20)) == 22
