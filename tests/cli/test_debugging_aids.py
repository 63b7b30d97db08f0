"""`duoln summary`, `duoln find-rate` and `duoln run --watch`, as a user meets them."""

import csv
import json
from importlib.util import find_spec

import pytest

import duoln
from duoln.cli import main
from duoln.tasks import make_config
from duoln.tasks.registry import find_task

MNIST = ["mnist", "--plugin", "mnist", "--preset", "smoke"]
RUN = ["run", *MNIST, "--backend", "numpy"]
PICTURES = ["norm_stats.png"] if find_spec("matplotlib") else []


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """A command in a folder of its own: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        code = main(list(words))
        return code, *capsys.readouterr()

    return run


# summary -------------------------------------------------------------------------------------------------

def test_the_summary_of_a_task(here):
    code, out, err = here("summary", *MNIST, "--variant", "ln")
    assert code == 0 and "made digits" in err
    lines = out.splitlines()
    assert lines[0] == "Permutation-invariant MNIST, ln: the loss of a batch of 128"
    assert [line.split()[0] for line in lines[4:10]] == ["model", "linear1", "norm1", "linear2", "norm2", "linear3"]
    assert lines[5].split() == ["linear1", "Linear", "(128,", "64)", "1", "50,176", "32.8", "kB"]
    count = sum(a.size for a in duoln.tree.leaves(find_task("mnist").model(make_config(find_task("mnist"), "ln", "smoke")).init(0)))
    assert f"parameters: {count:,}, {4 * count / 1000:.3g} kB" in out and max(map(len, lines)) <= 80


def test_its_document(here):
    code, out, _ = here("summary", *MNIST, "--variant", "bn", "--set", "hidden=8", "--batch-size", "4", "--json")
    document = json.loads(out)
    assert code == 0 and (document["task"], document["variant"], document["batch_size"]) == ("mnist", "bn", 4)
    rows = {row["path"]: row for row in document["rows"]}
    assert rows["norm3"]["output"] == [4, 10] and rows["linear1"]["parameters"] == 784 * 8
    assert document["parameters"] == sum(row["parameters"] for row in rows.values())
    assert document["training_bytes"] == 12 * document["parameters"] and document["activation_bytes"] > 0


@pytest.mark.parametrize("command", ["summary", "find-rate"])
@pytest.mark.parametrize(("words", "message"), [
    ([], "expected --variant with one of none, bn, ln, bn-hidden, ln-logits, found none"), (["--variant", "lm"], "did you mean 'ln'"),
    (["--variant", "ln", "--set", "hiden=3"], "did you mean 'hidden'"), (["--variant", "ln", "--batch-size", "0"], "batch_size of at least 1, found 0")])
def test_wrong_command_lines(here, command, words, message):
    code, out, err = here(command, *MNIST, *words)
    assert code == 2 and out == "" and message in " ".join(err.split())


# find-rate -----------------------------------------------------------------------------------------------

@pytest.mark.long
def test_the_range_test_of_a_task(here, tmp_path):
    code, out, err = here("find-rate", *MNIST, "--variant", "ln", "--backend", "numpy", "--out", "rates")
    assert code == 0 and "falls fastest" in out and "least" in out and "suggestions to start a search from, no more" in out
    assert "the task's own rate is 0.001" in out and "wrote rates/rates.csv" in err
    rows = list(csv.DictReader((tmp_path / "rates" / "rates.csv").read_text().splitlines()))
    assert float(rows[0]["rate"]) == pytest.approx(1e-6) and 80 < len(rows) <= 100
    assert (tmp_path / "rates" / "rates.png").exists() == bool(find_spec("matplotlib"))
    assert not (tmp_path / "runs").exists(), "it is no run"


def test_its_document_has_every_update(here, tmp_path):
    code, out, _ = here("find-rate", *MNIST, "--variant", "none", "--backend", "numpy", "--from", "1e-5", "--to", "1e-2", "--updates", "20", "--json")
    document = json.loads(out)
    assert code == 0 and len(document["rates"]) == len(document["losses"]) == len(document["smoothed"]) == 20
    assert document["rates"][-1] == pytest.approx(1e-2) and document["learning_rate"] == 0.001 and not document["diverged"]
    assert document["tenth_of_minimum"] == pytest.approx(document["minimum"] / 10) and 1e-5 < document["steepest"] <= 1e-2
    assert list(tmp_path.iterdir()) == [], "nothing is written without --out"


def test_a_range_without_an_effect_suggests_nothing(here):
    code, out, _ = here("find-rate", *MNIST, "--variant", "none", "--backend", "numpy", "--from", "1e-30", "--to", "1e-29", "--updates", "10",
                        "--batch-size", "2000")  # each batch is the whole data
    assert code == 0 and "the loss never fell, so no rate is suggested" in " ".join(out.split())


def test_one_that_diverges_says_so(here):
    code, out, _ = here("find-rate", *MNIST, "--variant", "none", "--backend", "numpy", "--to", "1e6")
    assert code == 0 and "because the loss diverged" in out and "of 100 updates" in out


# run --watch ---------------------------------------------------------------------------------------------

@pytest.mark.long
def test_a_watched_run_of_several_variants(here, tmp_path):
    code, _, err = here(*RUN, "--variant", "none,ln", "--watch", "norm-stats", "--watch-every", "5", "--out", "a")
    assert code == 0 and all(name in err for name in ["norm_stats.csv", *PICTURES])
    rows = list(csv.DictReader((tmp_path / "a" / "norm_stats.csv").read_text().splitlines()))
    assert {(row["variant"], row["update"]) for row in rows} == {(variant, str(step)) for variant in ("none", "ln") for step in (0, 5, 10, 15)}
    assert {row["layer"] for row in rows if row["variant"] == "ln"} == {"linear1", "norm1", "linear2", "norm2", "linear3"}
    assert all(float(row["variance"]) > 0 and float(row["gradient_norm"]) > 0 for row in rows)


@pytest.mark.long
def test_the_report_has_them_too(here, tmp_path):
    for name, words in (("a", ["--watch", "norm-stats"]), ("b", [])):
        assert here(*RUN, "--variant", "ln", "--out", name, *words)[0] == 0
    code, _, err = here("report", "a", "b", "--plugin", "mnist", "--out", "both", "--html", "page.html")
    assert code == 0 and all(f"wrote both/{name}" in err for name in ["norm_stats.csv", *PICTURES])
    assert len(set(err.splitlines())) == len(err.splitlines())
    assert {row["run"] for row in csv.DictReader((tmp_path / "both" / "norm_stats.csv").read_text().splitlines())} == {"a/ln"}
    assert (tmp_path / "page.html").read_text().count("<img") == 2 * len(PICTURES)  # with the curves
    assert here("report", "b", "--plugin", "mnist", "--out", "none")[0] == 0 and not (tmp_path / "none" / "norm_stats.csv").exists()


@pytest.mark.parametrize(("words", "message"), [
    (["--watch", "norm_stats"], "invalid choice: 'norm_stats'"), (["--watch", "norms"], "did you mean 'norm-stats'"),
    (["--watch-every", "5"], "--watch-every: expected --watch too"), (["--watch", "norm-stats", "--watch-every", "0"], "at least 1, found '0'"),
    (["--watch", "norm-stats", "--ranks", "2"], "--watch wants one process"), (["--watch"], "--watch: expected one argument")])
def test_wrong_watches(here, tmp_path, words, message):
    code, out, err = here(*RUN, "--variant", "ln", *words)
    assert code == 2 and out == "" and message in " ".join(err.split()) and list(tmp_path.iterdir()) == []
