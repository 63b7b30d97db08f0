"""How codes are judged, against independent implementations: SciPy, scikit-learn, plain loops."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from duoln.cli import main
from duoln.errors import DataError, DivergedError
from duoln.plugins.skip_thoughts import judging, relatedness, sets, table
from duoln.plugins.skip_thoughts.task import SkipThoughtsTask
from duoln.testing import check_error

TASK = SkipThoughtsTask()


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3, 7, 1000])
@pytest.mark.parametrize("kind", ["real", "ties", "tiny", "shifted"])
def test_correlations_are_scipys(count, kind):
    from scipy import stats

    rng = np.random.default_rng(count)
    x, y = rng.standard_normal(count), rng.standard_normal(count)
    if kind == "ties":
        x, y = rng.integers(0, 4, count).astype(float), rng.integers(0, 3, count).astype(np.float32)
        x[0], x[-1], y[0], y[-1] = 0, 1, 0, 1
    elif kind == "tiny":
        x = x * 1e-160
    elif kind == "shifted":
        y = x + 1e6
    assert relatedness.pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
    assert relatedness.spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)


def test_correlations_at_the_edge():
    assert relatedness.pearson(np.ones(5), np.arange(5.0)) == 0.0 == relatedness.spearman(np.arange(5.0), np.ones(5))
    assert relatedness.pearson(np.arange(3.0), -np.arange(3.0)) == -1.0


# SICK ---------------------------------------------------------------------------------------------------

def test_sparse_targets():
    scores = np.array([1.0, 1.25, 3.5, 4.9, 5.0])
    targets = relatedness.sparse_target(scores)
    expected = [[1, 0, 0, 0, 0], [.75, .25, 0, 0, 0], [0, 0, .5, .5, 0], [0, 0, 0, .1, .9], [0, 0, 0, 0, 1]]
    np.testing.assert_allclose(targets, expected, atol=1e-12)
    np.testing.assert_allclose(targets @ np.arange(1, 6), scores)


def _pairs(count=300, width=6, noise=0.3, seed=0):
    """Codes whose relatedness depends on their distance."""
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((count, width)), rng.standard_normal((count, width))
    near = rng.random((count, 1))
    v = near * u + (1 - near) * v
    scores = np.clip(5 - 4 * np.abs(u - v).mean(1) + noise * rng.standard_normal(count), 1, 5)
    return u, v, scores.astype(np.float32), np.repeat([0, 1, 2], [count // 2, count // 4, count - count // 2 - count // 4])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_codes_that_are_no_numbers_are_not_judged(value, part):
    """Neither where one trains, nor where it stops, nor where it is judged: no correlation is a result there."""
    u, v, scores, parts = _pairs()
    (u, v)[part % 2][np.flatnonzero(parts == part)[3], 2] = value
    check_error(DivergedError, lambda: relatedness.judge(u, v, scores, parts, 0, (1, 32)), "finite codes of 600 sentences, found 1 numbers")
    for x in (u, v, csr_array(u), csr_array(v)):
        if not np.isfinite(x.sum()):
            check_error(DivergedError, lambda x=x: judging.nested(x, parts, "a set"), "finite codes of 300 sentences, found 1 numbers")


@pytest.mark.peers
def test_softmax_regression_is_that_of_torch():
    """A round, step by step: Adam on the cross-entropy with shares as targets, batches in one order."""
    import torch

    u, v, scores, _ = _pairs()
    x, target = relatedness.features(u, v), relatedness.sparse_target(scores)
    ours = relatedness._Softmax(x.shape[1], 0)
    layer = torch.nn.Linear(x.shape[1], 5).double()
    layer.weight.data, layer.bias.data = torch.tensor(ours.weights[:-1].T.copy()), torch.zeros(5).double()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, eps=1e-8)
    for _ in range(3):
        for start in range(0, len(x), 64):
            loss = torch.nn.functional.cross_entropy(layer(torch.tensor(x[start:start + 64])), torch.tensor(target[start:start + 64]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ours.fit(x, target, 3, 64)
    np.testing.assert_allclose(ours.weights[:-1], layer.weight.detach().numpy().T, atol=1e-6)
    expected = torch.softmax(layer(torch.tensor(x)), -1).detach().numpy() @ np.arange(1, 6)
    np.testing.assert_allclose(ours.scores(x), expected, rtol=1e-6)


def test_rounds_end_where_the_correlation_is_none(monkeypatch):
    u, v, scores, parts = _pairs(40, noise=1.0)
    monkeypatch.setattr(relatedness, "pearson", lambda x, y: np.nan)
    assert relatedness.judge(u, v, scores, parts, 0, (1, 32)).rounds == 0


def test_codes_that_are_no_numbers_are_a_run_that_diverged():
    words, lengths = np.ones((3, 2), np.int32), np.array([1, 2, 2])
    for bad in (np.nan, np.inf):
        check_error(DivergedError, lambda bad=bad: judging.codes(lambda b: np.full((b["words"].shape[1], 2), bad), words, lengths),
                    "finite codes of 3 sentences")


@pytest.mark.parametrize("form", relatedness.ROUNDS)
def test_rounds_end_at_the_first_without_gain(form):
    from scipy import stats

    u, v, scores, parts = _pairs(120, noise=1.0)
    judged = relatedness.judge(u, v, scores, parts, 0, relatedness.ROUNDS[form])
    # Again, by hand.
    x, target = relatedness.features(u, v), relatedness.sparse_target(scores)
    model, order = relatedness._Softmax(x.shape[1], 0), np.flatnonzero(parts == 0)
    np.random.RandomState(1234).shuffle(order)
    seen, kept = [], []
    for _ in range(judged.rounds + 1):
        model.fit(x[order], target[order], *relatedness.ROUNDS[form])
        seen.append(stats.pearsonr(model.scores(x[parts == 1]), scores[parts == 1])[0])
        kept.append(model.weights.copy())
    assert judged.rounds >= 1 and (np.diff(seen[:-1]) > 0).all() and seen[-1] <= seen[-2] + 1e-12
    model.weights = kept[-2]
    test = parts == 2
    assert judged.r == pytest.approx(stats.pearsonr(model.scores(x[test]), scores[test])[0], abs=1e-9)
    assert judged.rho == pytest.approx(stats.spearmanr(model.scores(x[test]), scores[test])[0], abs=1e-9)


# Classes ------------------------------------------------------------------------------------------------

def test_nested_folds_are_those_of_plain_loops():
    """With another solver, cold starts, and scikit-learn's own folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold

    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, 3))
    y = (x[:, 0] + 1.2 * rng.standard_normal(70) > 0).astype(int)
    grid = (0.01, 1.0, 100.0)
    judged = judging.nested(x, y, "made", parts=4, grid=grid)
    order = np.arange(70)
    np.random.RandomState(1234).shuffle(order)
    xs, ys = x[order], y[order]

    def accuracy(train, test, strength):
        model = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-10).fit(xs[train], ys[train])
        return model.score(xs[test], ys[test])

    folds_outside, chosen = [], set()
    for train, test in KFold(4).split(xs):
        folds_inside = [np.mean([accuracy(train[a], train[b], c) for a, b in KFold(4).split(train)]) for c in grid]
        best = grid[int(np.argmax(folds_inside))]
        chosen.add(best)
        folds_outside.append(accuracy(train, test, best))
    assert len(chosen) > 1 and judged == pytest.approx(100 * np.mean(folds_outside), abs=1e-9)


def test_a_fold_of_one_class_and_too_few_sentences():
    x = np.arange(12.0)[:, None]
    y = np.zeros(12, int)
    order = np.arange(12)
    np.random.RandomState(1234).shuffle(order)
    y[order[0]] = 1  # alone in the first fold
    check_error(DataError, lambda: judging.nested(x, y, "cr"), "cr", "both classes", "of class 0 only")
    check_error(DataError, lambda: judging.nested(x[:9], y[:9], "cr"), "at least 10 sentences", "found 9")


def test_codes_keep_the_order_and_have_length_one():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 600).astype(np.int32)
    words = rng.integers(2, 50, (600, 8)).astype(np.int32)

    lengths[:300] = 0  # more than a pass has rows

    def encode(batch):
        return np.stack(((batch["words"] * batch["mask"]).sum(0), batch["mask"].sum(0)), 1).astype(np.float32)

    codes = judging.codes(encode, words, lengths)
    plain = np.stack([(words[k, :n].sum(), n) for k, n in enumerate(lengths)])
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(codes, plain / np.where(norms > 0, norms, 1), rtol=1e-6)


def test_a_bag_of_words():
    [pairs, labelled] = sets.load(["sick", "mr"], True, True)
    number = {"<end>": 0, "<unknown>": 1, "the": 2, "ship": 3}
    for test in (pairs, labelled):
        bag = table.bag_of_words(test, number)
        bag = bag if isinstance(bag, np.ndarray) else bag.toarray()
        np.testing.assert_allclose(np.linalg.norm(bag, axis=1), 1, rtol=1e-6)
        counts = np.array([[s.count("the"), s.count("ship")] for s in test.sentences], float)
        ratio = bag[:, 2] / np.maximum(bag[:, 3], 1e-9)
        both = (counts > 0).all(1)
        np.testing.assert_allclose(ratio[both], counts[both, 0] / counts[both, 1], rtol=1e-5)


# The command --------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the smoke preset without an evaluation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUOLN_OFFLINE", "1")
        out = tmp_path_factory.mktemp("skip") / "run"
        assert main(["run", "skip_thoughts", "--preset", "smoke", "--variant", "ln", "--set", "judge=none", "--backend", "numpy",
                     "--out", str(out)]) == 0
    return out


@pytest.mark.long
def test_evaluate_prints_table_3_with_our_rows(run, capsys, monkeypatch):
    monkeypatch.setattr(judging, "GRID", (1.0,))
    asked = ["evaluate", str(run), "--backend", "numpy", "--sets", "sick,mr"]
    monkeypatch.setenv("COLUMNS", "160")
    assert main(asked) == 0
    text = capsys.readouterr().out
    for words in ("Ours + LN", "0.854", "BookCorpus", "made books, synthetic", "no update", "bag of words", "ln, 27 updates"):
        assert words in text
    assert main([*asked, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["paper"]["Ours + LN"]["mr_accuracy"] == 79.5 and list(printed["results"]) == ["ln, 27 updates", "no update", "bag of words"]
    assert printed["results"]["ln, 27 updates"].keys() == {"sick_r", "sick_rho", "sick_mse", "mr_accuracy"}


@pytest.mark.long
def test_evaluate_with_vectors_for_unknown_words(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(judging, "GRID", (1.0,))
    rng = np.random.default_rng(0)
    words = ["the", "ship", "boat", "by", "sailed", "town", "unheard"]
    (tmp_path / "v.bin").write_bytes(b"7 2\n" + b"".join(w.encode() + b" " + rng.standard_normal(2).astype("<f4").tobytes() for w in words))
    asked = ["evaluate", str(run), "--backend", "numpy", "--sets", "mr", "--vectors"]
    assert main([*asked, str(tmp_path / "v.bin")]) == 0
    assert "vocabulary expansion: fitted on 5 words" in capsys.readouterr().out
    (tmp_path / "v.bin").write_bytes(b"7 2\nthe ")
    assert main([*asked, str(tmp_path / "v.bin")]) == 4
    assert "v.bin" in capsys.readouterr().err


def test_a_wrong_set(run, capsys):
    assert main(["evaluate", str(run), "--sets", "foo"]) == 2
    assert "'foo'" in capsys.readouterr().err
