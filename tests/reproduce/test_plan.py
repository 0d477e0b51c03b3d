"""Which cells there are, and in which order."""

from esmc_pyro.baselines import BASELINES
from esmc_pyro.data import KNOWN_SETS
from esmc_pyro.reproduce.experiments import (
    BASELINE_NAMES,
    DATASET_NAMES,
    EXPERIMENTS,
    METHOD_NAMES,
    OURS,
    PAPER,
    QUICK,
    Setting,
    plan,
)
from esmc_pyro.reproduce.methods import METHODS


def test_names_are_those_of_the_registries():
    assert set(BASELINE_NAMES) == set(BASELINES)
    assert tuple(METHODS) == METHOD_NAMES
    assert set(DATASET_NAMES) <= set(KNOWN_SETS)
    assert {e.dataset for e in EXPERIMENTS} == set(DATASET_NAMES)


def test_every_figure_of_the_paper_is_planned_with_its_shares():
    cells = plan(EXPERIMENTS, 1, methods=[OURS])
    sets = {e.name: e for e in EXPERIMENTS if e.name.startswith("Figure")}
    shares = {
        name: sorted({c.setting.share for c in cells if (c.dataset, c.setting.kind) == (e.dataset, e.settings[0].kind)})
        for name, e in sets.items()
    }
    assert set(shares) == {f"Figure {number}" for number in range(4, 11)}
    assert all(shares[f"Figure {n}"] == [0, 0.1, 0.2, 0.3, 0.4, 0.5] for n in (4, 5, 6, 7))
    assert all(shares[f"Figure {n}"] == [0.1, 0.15, 0.2] for n in (8, 9, 10))


def test_a_cell_is_planned_once_and_first_seeds_of_a_figure_come_first():
    cells = plan(EXPERIMENTS, 3)
    assert len(cells) == len(set(cells))
    figure = [cell.seed for cell in cells if cell.dataset == "cal500"]
    assert figure == sorted(figure)
    assert set(figure) == {0, 1, 2}
    datasets = [cell.dataset for cell in cells]
    assert datasets.index("cal500") < datasets.index("delicious") < datasets.index("espgame")
    assert {cell.seed for cell in cells if cell.setting.kind == "official"} == {0}


def test_names_given_leave_the_others_out():
    cells = plan([e for e in EXPERIMENTS if e.dataset == "corel5k"], 1, ["BR", OURS], rows=50)
    assert {(cell.dataset, cell.rows) for cell in cells} == {("corel5k", 50)}
    assert {cell.method for cell in cells} == {"BR", OURS}
    # BR is no curve: only with all labels; and unlabelled rows cannot help it
    assert [cell.setting for cell in cells if cell.method == "BR"] == [Setting("removed", 0.0)]
    assert {cell.setting.kind for cell in cells if cell.method == OURS} == {"removed", "kept", "alone"}


def test_a_method_that_is_in_no_figure_is_run_by_wish():
    assert not [cell for cell in plan(EXPERIMENTS, 1) if cell.method == PAPER]
    cells = plan(EXPERIMENTS, 1, [PAPER])
    assert {cell.dataset for cell in cells} == set(DATASET_NAMES)
    assert {cell.method for cell in cells} == {PAPER}
    assert "alone" not in {cell.setting.kind for cell in cells}


def test_settings_are_read_as_they_are_written_and_tuned_in_the_middle_of_their_figure():
    for experiment in (*EXPERIMENTS, *QUICK):
        for setting in experiment.settings:
            assert Setting.parse(str(setting)) == setting
            assert setting.tuned_at.tuned_at == setting.tuned_at
    assert Setting("removed", 0.5).tuned_at == Setting("removed", 0.3)
    assert Setting("removed", 0.0).tuned_at == Setting("removed", 0.0)
    assert Setting("alone", 0.1).tuned_at == Setting("alone", 0.15)
