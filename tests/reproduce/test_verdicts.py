"""Verdicts on made-up cells whose answer is known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from esmc_pyro.reproduce import paper
from esmc_pyro.reproduce.experiments import EXPERTS, OURS, PLAIN
from esmc_pyro.reproduce.measure import ERRORS, METRICS, SECONDS
from esmc_pyro.reproduce.summary import mean_and_error, summarise, table_published, table_three, table_two
from esmc_pyro.reproduce.verdicts import FAILS, HOLDS, IN_PART, OPEN, SAME, Comparison, Verdict, judge

COLUMNS = (*METRICS, *ERRORS, *SECONDS)


def cell(dataset, setting, method, seed, **values):
    return {"dataset": dataset, "setting": setting, "method": method, "seed": seed, "rows": 0} | {
        name: values.get(name, 0.5) for name in COLUMNS
    }


def made(gap, noise=0.001, seeds=3, datasets=("a", "b"), better=EXPERTS, worse=PLAIN, metric="auc"):
    """Cells in which ``better`` leads ``worse`` by ``gap`` for each dataset, give or take ``noise`` by seed."""
    gaps = gap if isinstance(gap, tuple) else (gap,) * len(datasets)
    rng = np.random.default_rng(0)
    cells = []
    for dataset, lead in zip(datasets, gaps, strict=True):
        for seed in range(seeds):
            partition = rng.normal()  # what a partition does to both must cancel
            wobble = noise * (seed - 1)
            for setting in ("removed 0.1", "removed 0.5"):
                cells.append(cell(dataset, setting, better, seed, **{metric: partition + lead + wobble}))
                cells.append(cell(dataset, setting, worse, seed, **{metric: partition}))
    return pd.DataFrame(cells)


def verdict(cells, claim, subject=EXPERTS):
    [found] = [v for v in judge(cells) if v.claim.startswith(claim) and v.subject == subject]
    return found


EXPERTS_HELP = "Experts help"


@pytest.mark.parametrize(
    ("gap", "outcome"),
    [
        (0.01, HOLDS),
        (-0.01, FAILS),
        ((0.01, -0.01), IN_PART),
        (0.0, OPEN),
        ((0.01, 0.0), OPEN),  # one of four comparisons may be chance
        ((0.0, -0.01), OPEN),
    ],
)
def test_experts_are_judged_by_differences_that_exceed_their_error(gap, outcome):
    found = verdict(made(gap), EXPERTS_HELP)
    assert found.outcome == outcome
    assert [c.metric for c in found.comparisons] == ["auc", "coverage"] * 2
    assert found.comparisons[0].difference == pytest.approx(gap[0] if isinstance(gap, tuple) else gap)
    assert found.comparisons[0].error == pytest.approx(0.001 / np.sqrt(3))


def test_a_difference_too_small_to_matter_decides_nothing():
    assert verdict(made(0.0009, noise=1e-6), EXPERTS_HELP).outcome == SAME
    assert verdict(made(0.0011, noise=1e-6), EXPERTS_HELP).outcome == HOLDS


@pytest.mark.parametrize(
    ("favour", "against", "undecided", "outcome"),
    [
        (9, 1, 0, HOLDS), (8, 2, 0, IN_PART), (2, 8, 0, IN_PART), (1, 9, 0, FAILS), (3, 39, 6, FAILS),
        (2, 0, 2, HOLDS), (0, 2, 2, FAILS), (1, 0, 2, OPEN), (0, 1, 2, OPEN), (0, 0, 3, OPEN),
    ],
)  # fmt: skip
def test_what_most_of_the_decided_comparisons_say_is_the_outcome(favour, against, undecided, outcome):
    counts = {0.1: favour, -0.1: against, 0.01: undecided}
    comparisons = [Comparison("a", "b", "auc", d, 0.01, 3) for d, count in counts.items() for _ in range(count)]
    unjudged = Comparison("a", "b", "auc", 0.5, float("nan"), 1)
    found = Verdict("a claim", "", OURS, (*comparisons, unjudged))
    assert found.outcome == outcome
    assert "1 without an error" in found.sentence


def test_differences_known_to_be_too_small_are_no_difference():
    small, unsure = (Comparison("a", "b", "auc", 0.0002, error, 3) for error in (0.0001, 0.001))
    assert Verdict("a claim", "", OURS, (small, small)).outcome == SAME
    assert Verdict("a claim", "", OURS, (small, unsure)).outcome == OPEN


def test_times_that_vary_more_than_a_timer_have_the_bar_of_their_partitions():
    cells = pd.DataFrame(
        [
            cell("a", "removed 0", m, s, fit_seconds=t * (1 + s))
            for m, t in ((EXPERTS, 1.0), ("LEML", 5.0))
            for s in (0, 1)
        ]
        + [cell("a", "removed 0", "SLRM", s, fit_seconds=5.0) for s in (0, 1)]
    )
    found = {c.against: c for c in verdict(cells, "ESMC trains faster").comparisons}
    assert (found["LEML"].seeds, found["LEML"].error) == (None, 0.1)  # the same ratio twice
    assert found["SLRM"].seeds == 2
    assert found["SLRM"].error == pytest.approx(np.log(2) / 2)


def test_comparisons_of_one_partition_do_not_outnumber_those_that_have_an_error():
    cells = pd.concat([made(0.01), made(0.01, seeds=1, datasets=("c", "d"))])
    assert verdict(cells, EXPERTS_HELP).outcome == HOLDS


def test_the_bar_is_students_for_few_partitions():
    bar = stats.t.ppf(0.975, 2)
    assert Comparison("a", "b", "auc", 1.01 * bar * 0.1, 0.1, 3).sign == 1
    assert Comparison("a", "b", "auc", 0.99 * bar * 0.1, 0.1, 3).sign == 0
    assert Comparison("a", "b", "auc", -1.01 * bar * 0.1, 0.1, 3).sign == -1
    assert Comparison("a", "b", "auc", 9.0, float("nan"), 1).sign == 0
    assert Comparison("a", "b", "p@1", 2.0, 1.0, None).sign == 1


def test_one_partition_decides_nothing_and_no_cells_leave_nothing_to_compare():
    found = verdict(made(0.3, seeds=1), EXPERTS_HELP)
    assert (found.outcome, len(found.comparisons)) == (OPEN, 4)
    empty = verdict(made(0.3, better=OURS), EXPERTS_HELP)
    assert (empty.outcome, empty.comparisons) == (OPEN, ())
    assert "were not run" in empty.sentence


def test_a_smaller_coverage_favours_a_method():
    assert verdict(made(5.0, metric="coverage"), EXPERTS_HELP).outcome == FAILS
    assert verdict(made(-5.0, metric="coverage"), EXPERTS_HELP).outcome == HOLDS
    assert "coverage +5.0 ± 0.0" in verdict(made(-5.0, metric="coverage"), EXPERTS_HELP).sentence


def test_only_partitions_that_both_methods_have_are_compared():
    cells = made(0.01)
    lost = cells[~((cells["method"] == PLAIN) & (cells["seed"] == 2) & (cells["dataset"] == "a"))]
    first = verdict(lost, EXPERTS_HELP).comparisons[0]
    assert (first.dataset, first.seeds) == ("a", 2)
    assert first.difference == pytest.approx(0.01 - 0.0005)


def test_precision_that_experts_cost_is_in_per_cent():
    cells = made(-0.05, metric="p@1", datasets=("a",))
    found = verdict(cells, "Experts cost")
    assert found.outcome == HOLDS
    assert found.comparisons[0].difference == pytest.approx(5.0)


def test_faster_is_a_ratio_and_one_fit_is_enough_for_a_large_one():
    times = {EXPERTS: 2.0, "SLRM": 8.0, "FaIE": 2.1, "LEML": 0.5}
    cells = pd.DataFrame([cell("a", "official", m, 0, fit_seconds=t) for m, t in times.items()])
    found = verdict(cells, "ESMC trains faster")
    signs = {c.against: c.sign for c in found.comparisons}
    assert signs == {"SLRM": 1, "FaIE": 0, "LEML": -1}
    assert found.outcome == IN_PART
    assert "trains 4 ± 0.4 times slower to 4 ± 0.4 times faster" in found.sentence


def test_unlabelled_rows_are_judged_share_by_share():
    cells = []
    for seed in range(3):
        for share in (0.1, 0.2):
            base = share + seed
            cells.append(cell("a", f"alone {share}", OURS, seed, auc=base))
            cells.append(cell("a", f"kept {share}", OURS, seed, auc=base + 0.02 + 0.001 * seed))
    found = verdict(pd.DataFrame(cells), "Unlabelled", OURS)
    assert found.outcome == HOLDS
    assert found.comparisons[0].difference == pytest.approx(0.021)
    assert verdict(pd.DataFrame(cells), "Unlabelled", "SLRM").comparisons == ()


def test_what_missing_labels_cost_is_the_fall_from_the_first_share_to_the_last():
    cells = []
    for seed in range(3):
        for share, ours, faie in ((0.0, 0.9, 0.85), (0.3, 0.1, 0.1), (0.5, 0.88, 0.80)):
            cells.append(cell("a", f"removed {share:g}", OURS, seed, auc=ours + 0.001 * seed * share))
            cells.append(cell("a", f"removed {share:g}", "FaIE", seed, auc=faie))
    found = verdict(pd.DataFrame(cells), "Missing labels cost", OURS)
    assert found.outcome == HOLDS
    assert found.comparisons[0].difference == pytest.approx(0.03 + 0.0005)


def test_tail_labels_are_judged_against_linear_embeddings_with_all_labels_only():
    cells = made(0.1, metric="rare_auc", better=OURS, worse="PLST")
    assert verdict(cells, "Tail", OURS).comparisons == ()
    full = cells.assign(setting=cells["setting"].replace("removed 0.1", "removed 0"))
    found = verdict(full, "Tail", OURS)
    assert found.outcome == OPEN  # one of four measures
    assert {c.metric for c in found.comparisons} == {"psp@1", "psp@3", "psp@5", "rare_auc"}


def test_precision_on_a_published_split_is_held_against_the_papers_numbers():
    errors = {"p@1_error": 0.008, "p@3_error": 0.006}
    cells = pd.DataFrame([cell("delicious", "official", OURS, 0, **{"p@1": 0.69, "p@3": 0.56}, **errors)])
    found = verdict(cells, "ESMC’s precision", OURS)
    signs = {(c.against, c.metric): c.sign for c in found.comparisons}
    assert signs[("the paper’s LEML", "p@1")] == 1  # 69.00 and 65.66, error 0.8
    assert signs[("the paper’s LEML", "p@3")] == -1  # 56.00 and 60.54
    assert {against for against, _ in signs} == {"the paper’s LEML"}
    assert found.outcome == IN_PART


def test_one_published_split_is_judged_by_its_test_rows():
    errors = {"psp@1_error": 0.01, "psp@3_error": float("nan")}
    cells = [cell("a", "official", m, 0, **{"psp@1": p, "psp@3": p}, **errors) for m, p in ((OURS, 0.4), ("PLST", 0.3))]
    found = {c.metric: c for c in verdict(pd.DataFrame(cells), "Tail", OURS).comparisons}
    assert (found["psp@1"].sign, found["psp@1"].error) == (1, pytest.approx(0.01 * 2**0.5))
    assert found["psp@3"].sign == 0


def test_seeds_that_lack_a_setting_do_not_mix_settings():
    cells = made(0.01, datasets=("a",), noise=0.0)
    cells.loc[(cells["setting"] == "removed 0.5") & (cells["method"] == EXPERTS), "auc"] += 1.0
    lost = cells[~((cells["setting"] == "removed 0.5") & (cells["seed"] == 2))]
    first = verdict(lost, EXPERTS_HELP).comparisons[0]
    assert (first.seeds, first.difference) == (3, pytest.approx(0.01))


def test_published_figures_stand_beside_ours():
    cells = pd.DataFrame([cell("delicious", "official", "LEML", 0, **{"p@1": 0.66, "p@3": 0.6, "p@5": 0.55})])
    [line] = table_published(cells).to_dict("records")
    assert [line[f"difference_p@{k}"] for k in (1, 3, 5)] == pytest.approx([0.33, -0.55, -1.08])
    assert table_published(made(0.1)).empty


def test_means_have_their_standard_errors():
    assert mean_and_error([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, np.std([1, 2, 4], ddof=1) / np.sqrt(3)))
    assert np.isnan(mean_and_error([1.0])[1])
    table = summarise(made(0.5, noise=0.1, datasets=("a",)), ("auc",)).set_index(["setting", "method"])
    assert (table["seeds"] == 3).all()
    assert table.loc[("removed 0.1", EXPERTS), "mean"] - table.loc[("removed 0.1", PLAIN), "mean"] == pytest.approx(0.5)


def test_tables_put_the_papers_numbers_beside_ours():
    errors = {"p@1_error": 0.008, "p@3_error": 0.006}
    cells = pd.DataFrame(
        [cell("delicious", "official", PLAIN, 0, **{"p@1": 0.6, "p@3": 0.5, "fit_seconds": 7.0}, **errors)]
    )
    two = table_two(cells).set_index(["dataset", "method"])
    assert two.loc[("delicious", PLAIN), ["p@1", "p@1_error", "paper_p@1"]].tolist() == pytest.approx([60, 0.8, 61.54])
    assert np.isnan(two.loc[("nus-wide", PLAIN), "p@1"])
    tuned = pd.DataFrame([{"dataset": "delicious", "setting": "official", "method": PLAIN, "seconds": 3.0}])
    three = table_three(cells, tuned).set_index(["dataset", "method"])
    assert three.loc[("delicious", PLAIN), ["seconds", "tuning_seconds"]].tolist() == [7.0, 3.0]
    assert three.loc[("espgame", "FaIE"), "paper_seconds"] == 12910
    assert set(paper.TABLE_III) <= set(three.index.get_level_values(0))


def test_the_papers_tables_are_transcribed():
    assert {name: [tuple(row) for row in rows.values()] for name, rows in paper.TABLE_II.items()} == {
        "nus-wide": [(20.76, 16.0, 1097), (40.63, 28.48, 126)],
        "mediamill": [(84.0, 67.19, None), (84.82, 68.8, 130.65)],
        "delicious": [(65.66, 60.54, None), (61.54, 56.12, 56.52)],
    }
    assert [sum(rows.values()) for rows in paper.TABLE_III.values()] == [24, 409, 9127, 13937, 22943, 18808]
