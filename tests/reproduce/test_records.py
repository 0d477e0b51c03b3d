"""Result files: lines are added whole, found again, and not believed if damaged."""

import math

import pytest

from esmc_pyro.reproduce.records import Records


def open_file(path):
    return Records(path, ("dataset", "seed"), ("chosen",), ("auc", "seconds"))


def line(dataset, seed, auc, chosen='{"a": 1, "b": "x, y"}'):
    return {"dataset": dataset, "seed": seed, "chosen": chosen, "auc": auc, "seconds": 1 / 3}


def test_lines_are_found_again_with_the_same_numbers_and_texts(tmp_path):
    records = open_file(tmp_path / "new" / "results.csv")
    records.add(line("a", 0, 0.1 + 0.2))
    records.add(line("b", 1, float("nan"), chosen='two\nlines, "quoted"'))
    again = open_file(tmp_path / "new" / "results.csv")
    assert again.damaged == 0
    assert again.get(dataset="a", seed=0)["auc"] == 0.1 + 0.2
    assert again.get(dataset="a", seed=0)["chosen"] == '{"a": 1, "b": "x, y"}'
    assert math.isnan(again.get(dataset="b", seed=1)["auc"])
    assert again.get(dataset="b", seed=1)["chosen"] == 'two lines, "quoted"'
    assert again.get(dataset="b", seed=0) is None


def test_a_line_that_was_added_is_the_line_that_is_read(tmp_path):
    records = open_file(tmp_path / "results.csv")
    records.add(line("a", 0, 0.5))
    [added], [read] = records.lines.values(), open_file(tmp_path / "results.csv").lines.values()
    assert added == {key: value for key, value in read.items() if key != "whole"}


@pytest.mark.parametrize("lost", [1, 2, 4, 5, 6, 15, 25, 30, 45, 70])
def test_a_line_cut_anywhere_does_not_count_and_swallows_nothing(tmp_path, lost):
    path = tmp_path / "results.csv"
    records = open_file(path)
    records.add(line("a", 0, 0.5))
    whole = path.read_bytes()
    records.add(line("b", 0, 0.25))
    full = path.read_bytes()
    path.write_bytes(full[: max(len(full) - lost, len(whole))])
    cut = open_file(path)
    assert set(cut.lines) == ({("a", "0"), ("b", "0")} if lost == 1 else {("a", "0")})  # 1: only its end is lost
    cut.add(line("c", 0, 0.75))
    after = open_file(path)
    assert after.get(dataset="a", seed=0)["auc"] == 0.5
    assert after.get(dataset="c", seed=0)["auc"] == 0.75
    assert (after.get(dataset="b", seed=0) is None) == (lost > 1)


@pytest.mark.parametrize(
    "bad", ["a,1,{},high,0.1,yes", "a,1,{},0.5,yes", "a,1,{},0.5,0.1,0.2,yes", 'a,1,"{},0.5', "\0"]
)
def test_a_line_that_makes_no_sense_is_counted_as_damaged(tmp_path, bad):
    path = tmp_path / "results.csv"
    open_file(path).add(line("a", 0, 0.5))
    with open(path, "a") as file:
        file.write(bad + "\n")
    open_file(path).add(line("a", 2, 0.5))
    found = open_file(path)
    assert found.damaged == 1
    assert set(found.lines) == {("a", "0"), ("a", "2")}


def test_a_file_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("dataset,auc\na,1\n")
    with pytest.raises(ValueError, match=r"results\.csv has other columns than results of this version"):
        open_file(path)
