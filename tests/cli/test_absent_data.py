"""A folder of DUOLN_DATA that does not exist, such as a misspelt one, is told."""

import os

from duoln import doctor
from duoln.cli import main, one_task


def test_a_folder_of_the_user_that_is_not_there_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DUOLN_DATA", os.pathsep.join([str(tmp_path), str(tmp_path / "typo")]))
    line = f"DUOLN_DATA: {tmp_path / 'typo'} does not exist"
    one_task.say_absent()
    assert capsys.readouterr().err.splitlines() == [line]
    assert line in doctor.examine(asked=["mnist"])["advice"]
    monkeypatch.chdir(tmp_path)
    assert main(["run", "mnist", "--preset", "smoke", "--variant", "ln", "--epochs", "0", "--out", "r"]) == 0
    assert capsys.readouterr().err.splitlines().count(line) == 1
