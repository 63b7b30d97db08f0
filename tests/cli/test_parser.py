"""Commands that plug-ins bring, on the command line."""

import pytest

from duoln.cli import build_parser, main

GREETING = """
    from duoln.cli import console
    from duoln.tasks import Command, hookimpl

    def options(parser):
        parser.add_argument("name")

    def run(args):
        console.put(f"hello {args.name}")
        return 7

    @hookimpl
    def duoln_commands():
        return [Command("NAME", "say hello, 50 % louder", options, run)]
"""


def test_a_command_of_an_outside_plugin_runs(install, capsys):
    install("greeting", GREETING.replace("NAME", "greet"))
    assert main(["greet", "Ada"]) == 7
    assert capsys.readouterr().out == "hello Ada\n"
    assert main(["greet"]) == 2
    assert "duoln greet: error: the following arguments are required: name" in capsys.readouterr().err


def test_help_lists_it(install, capsys):
    install("greeting", GREETING.replace("NAME", "greet"))
    for words in (["--help"], []):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "greet     say hello, 50 % louder" in out and "    paper     every figure" in out


def test_a_command_of_duoln_stays_and_the_other_is_left_out(install, capsys):
    install("greeting", GREETING.replace("NAME", "list"))
    assert main(["--help"]) == 0
    captured = capsys.readouterr()
    assert "left out: command 'list' of greeting-dist, because duoln has one of that name" in captured.err
    assert "50 % louder" not in captured.out
    assert main(["list"]) == 0


def test_who_asks_for_a_command_of_a_broken_plugin_is_told(install, capsys):
    install("greeting", "import no_such_module_at_all")
    assert main(["greet", "Ada"]) == 2
    captured = capsys.readouterr()
    assert "plug-in 'greeting' of greeting-dist is broken: ModuleNotFoundError" in captured.err
    assert "invalid choice: 'greet'" in captured.err
    assert main(["paper", "--section", "6.5"]) == 0
    assert "is broken" not in capsys.readouterr().err


@pytest.mark.parametrize("word", ["run", "list", "bench", "--version"])
def test_no_plugin_is_loaded_for_a_command_of_duoln(word, install):
    install("slow", "raise SystemExit('loaded')")
    [commands] = [action for action in build_parser(word)._actions if action.dest == "command"]
    assert "paper" not in commands.choices and (word in commands.choices) is (word != "--version")
