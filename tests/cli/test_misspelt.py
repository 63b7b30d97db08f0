"""Misspelt words of a command line: the error proposes the word that is meant, and each error becomes an exit code."""

import pytest

from duoln.cli import main
from duoln.cli.parser import Parser
from duoln.cli.run import run_task
from duoln.tasks.registry import find_task
from duoln.tasks.settings import parse_settings


@pytest.mark.parametrize(("words", "meant"), [
    (["rnu"], "'run'"), (["bench", "trian"], "'train'"), (["--versoin"], "'--version'"), (["run", "mnits"], "'mnist'"),
    (["run", "mnist", "--varaint", "ln"], "'--variant'"), (["run", "mnist", "-variant", "ln"], "'--variant'"),
    (["run", "mnist", "--epocs=3"], "'--epochs'"), (["run", "--sede", "3"], "'--seed'"), (["report", "--markdwon"], "'--markdown'"),
    (["bench", "train", "--bakend", "numpy"], "'--backend'"), (["paper", "--htlm", "a.html"], "'--html'"),
    (["analyze", "shift", "--evry", "2"], "'--every'"),
    (["run", "mnist", "--variant", "lm"], "'ln'"), (["run", "mnist", "--variant", "bn-hiden"], "'bn-hidden'"),
    (["run", "mnist", "--preset", "smok"], "'smoke'"), (["run", "mnist", "--set", "epohcs=3"], "'epochs'"),
    (["run", "mnist", "--backend", "nunpy"], "'numpy'"), (["analyze", "shift", "--preset", "smok"], "'smoke'"),
    (["report", "x", "--by", "sed"], "'seed'"), (["selftest", "--backend", "nunpy"], "'numpy'")])
def test_the_word_that_is_meant_is_proposed(words, meant, capsys):
    assert main(words) == 2
    assert f"did you mean {meant}?" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("words", "end"), [
    (["run", "mnist", "--foo"], "`duoln run --help` lists the options"), (["rnu"], "`duoln --help` lists the commands")])
def test_an_error_is_two_lines_without_the_usage(words, end, capsys):
    assert main(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("duoln") and ": error: " in first and second == end


@pytest.mark.parametrize("words", [["run", "mnist", "--foo"], ["run", "mnist", "ln"], ["run", "mnist", "--epochs"], ["report", "--mark"]])
def test_nothing_is_proposed_where_nothing_is_near(words, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "did you mean" not in err and f"duoln {words[0]}: error: " in err


@pytest.mark.parametrize(("words", "advice"), [
    (["run", "mnist", "--lr", "0.1"], "--set learning_rate=VALUE"), (["run", "mnist", "--learning-rate=0.1"], "--set learning_rate=VALUE"),
    (["find-rate", "mnist", "--hidden", "8"], "--set hidden=VALUE"), (["run", "mnist", "--set", "lr=1"], "did you mean 'learning_rate'?"),
    (["run", "mnist", "--set", "weight_decay=1"], "a term of the loss"), (["summary", "mnist"], "expected --variant with one of none, bn, ln")])
def test_the_way_to_a_setting_is_told(words, advice, capsys):
    assert main(words) == 2
    assert advice in " ".join(capsys.readouterr().err.split())


def test_flags_may_be_abbreviated(capsys):
    assert main(["list", "--js"]) == 0 and capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize(("command", "pair", "flag"), [
    (["run", "mnist"], "variant=ln", "--variant"), (["run", "mnist"], "preset=smoke", "--preset"), (["run", "mnist"], "out=a", "--out"),
    (["run", "mnist"], "debug_nans=true", "--debug-nans"), (["analyze", "shift"], "updates=3", "--updates")])
def test_an_option_of_the_command_is_no_setting(command, pair, flag, capsys):
    assert main([*command, "--set", pair]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "[--set] expected a setting of" in err and f"an option of the command: {flag}" in err


def test_an_option_that_the_task_has_as_a_setting_is_one(capsys):
    assert main(["run", "mnist", "--set", "batch_size=big"]) == 2
    assert "expected int" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "told"), [
    (["run", "mnist", "--set", "batch_size=32", "--batch-size", "64"], "--batch-size or --set batch_size, found both"),
    (["run", "mnist", "--epochs", "1", "--set", "epochs=1"], "--epochs or --set epochs, found both"),
    (["run", "mnist", "--seed", "1", "--set", "seed=2"], "--seed or --set seed, found both"),
    (["find-rate", "mnist", "--variant", "ln", "--seed", "1", "--set", "seed=2"], "--seed or --set seed, found both"),
    (["summary", "mnist", "--variant", "ln", "--batch-size", "1", "--set", "batch_size=2"], "--batch-size or --set batch_size, found both"),
    (["run", "mnist", "--set", "hidden=8", "--set", "hidden=16"], "one value of hidden, found '8' and '16'"),
    (["bench", "train", "--set", "hidden=8", "--set", "hidden=16"], "one value of hidden, found '8' and '16'"),
    (["analyze", "shift", "--set", "seed=2"], "--set seed: expected --seed"), (["run", "mnist", "--variant", "ln,bn,ln"], "different variants, found 'ln,bn,ln'"),
    (["analyze", "smoothness", "--task", "mnist", "--variant", "ln,ln"], "different variants, found 'ln,ln'")])
def test_a_setting_is_given_once(words, told, capsys):
    assert main(words) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_same_value_may_be_given_twice():
    assert parse_settings(["hidden=8", "seed=1", "hidden=8"]) == {"hidden": "8", "seed": "1"}


# Values that look like options ------------------------------------------------------------------------------

def _options():
    parser = Parser(prog="x")
    parser.add_argument("--shift", type=float)
    parser.add_argument("--text")
    parser.add_argument("--rates", type=float, nargs="+")
    parser.add_argument("--json", action="store_true")
    return parser


@pytest.mark.parametrize(("words", "joined"), [(["--text", "-hello"], "--text=-hello"), (["--te", "-a", "--json"], "--text=-a"), (["--rates", "-x"], "--rates=-x"), (["--shift", "-1e-3"], "--shift=-1e-3")])
def test_another_value_that_begins_with_a_dash_is_shown_joined(words, joined):
    with pytest.raises(SystemExit) as end:
        _options().parse_args(words)
    assert f"a value that begins with '-' is joined: {joined}" in end.value.message


@pytest.mark.parametrize("words", [["--text"], ["--text", "--json"], ["--text", "--js"], ["--text", "--shift=1"]])
def test_an_option_is_no_value(words):
    with pytest.raises(SystemExit) as end:
        _options().parse_args(words)
    assert end.value.message.splitlines()[0].endswith("argument --text: expected one argument")


# Exit codes ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("words", "code"), [(["rnu"], 2), ([], 0), (["--help"], 0), (["--version"], 0), (["run", "--help"], 0),
                                             (["run", "mnist", "--epochs", "x"], 2), (["sample", "--nothing"], 2)])
def test_a_call_from_python_returns_the_code(words, code, capsys):
    assert main(words) == code
    assert "".join(capsys.readouterr())


def test_so_does_the_command_of_one_task(capsys):
    assert run_task(lambda: find_task("mnist"), ["--epocs", "3"]) == 2
    assert "did you mean '--epochs'?" in capsys.readouterr().err
