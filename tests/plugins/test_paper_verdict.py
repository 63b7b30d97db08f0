"""Verdicts, and how often the rules that lead to them are wrong."""

from pathlib import Path

import numpy as np
import pytest
from paper_runs import made

from duoln.plugins.paper.rules import Metric, alike, better, earlier, less_sensitive, sooner
from duoln.plugins.paper.verdict import ENOUGH_SEEDS, of_seeds, so_far

NLL = Metric("train_nll", "lowest", "train NLL")
DRAWS, EVALUATIONS = 250, np.arange(1, 21)
RULES = {"better": better("ln", ("none",), (NLL,)), "sooner": sooner("ln", "none", (NLL,)),
         "sooner, share": sooner("ln", "none", (NLL,), 0.6), "earlier": earlier("ln", "none", NLL),
         "less_sensitive": less_sensitive(("ln", "none"), NLL, "batch_size", (4, 128)), "alike": alike(("ln", "none"), NLL, 0.05)}


def curve(shape, rng, speed=1.0):
    """The values of a run. Seeds differ by their rate, level or time of escape, and each evaluation has noise."""
    t, apart = EVALUATIONS * speed, rng.normal()
    values = {"falling": lambda: 0.1 + np.exp(-t / 6 * np.exp(0.1 * apart)),
              "flat": lambda: (0.3 + np.exp(-t / 3)) * np.exp(0.02 * apart),
              "plateau": lambda: np.where(t < 4 + 4 * np.exp(0.5 * apart), 1.0, 0.2),
              "rising again": lambda: 0.3 + ((t - 8 * np.exp(0.2 * apart)) / 20) ** 2,
              "few values": lambda: (0.02 + 0.2 * np.exp(-t / 3)) * np.exp(0.05 * apart)}[shape]()
    noisy = values * np.exp(rng.normal(0, 0.05 if shape == "flat" else 0.02, len(t)))
    return (np.round(noisy, 2) if shape == "few values" else noisy).tolist()


SHAPES = ("falling", "flat", "plateau", "rising again", "few values")


def rates(name, shape, speed=1.0):
    """The shares of draws with five seeds in which two equal variants get the verdicts `holds` and `does not hold`."""
    rule, rng, verdicts = RULES[name], np.random.default_rng([7, SHAPES.index(shape)]), []
    for _ in range(DRAWS):
        roles = [[made(role.variant, curve(shape, rng, speed if role is rule.roles[0] else 1.0), seed) for seed in range(ENOUGH_SEEDS)]
                 for role in rule.roles]
        verdicts.append(of_seeds(rule.judge(roles).holds, ENOUGH_SEEDS))
    return verdicts.count("holds") / DRAWS, verdicts.count("does not hold") / DRAWS


def test_the_rules_are_wrong_about_equal_variants_as_rarely_as_the_page_says():
    """The most of any shape. That equal variants are alike, and that none is at 60 % of the other, is no error."""
    page = (Path(__file__).parents[2] / "duoln/docs/paper.md").read_text(encoding="utf-8")
    for name in ("better", "sooner", "earlier", "less_sensitive"):
        holds, fails = map(max, zip(*(rates(name, shape) for shape in SHAPES), strict=True))
        assert max(holds, fails) <= 0.05 and f"| `{name}` | {holds:.1%} | {fails:.1%} |" in page, (name, holds, fails)
    for name, which in (("sooner, share", 0), ("alike", 1)):
        assert max(rates(name, shape)[which] for shape in SHAPES[:3]) <= 0.05


def test_a_variant_at_the_very_share_is_rarely_said_to_be_beyond_it():
    for shape in ("falling", "plateau"):
        assert max(rates("sooner, share", shape, 1 / 0.6)) <= 0.05


def test_a_variant_twice_as_fast_is_found():
    assert min(rates("sooner", shape, 2.0)[0] for shape in ("falling", "few values")) >= 0.9


@pytest.mark.parametrize(("holds", "seeds", "long_enough", "word"), [
    (True, 5, True, "holds"), (False, 5, True, "does not hold"), (None, 5, True, "cannot be told"), (True, 4, True, "too short to tell"),
    (False, 1, True, "too short to tell"), (None, 3, True, "too short to tell"), (True, 9, False, "too short to tell")])
def test_five_seeds_of_enough_length_are_a_verdict(holds, seeds, long_enough, word):
    assert of_seeds(holds, seeds, long_enough) == word


def test_what_is_seen_so_far():
    assert so_far(None, 1) == "so far: it cannot be told (1 seed)" and so_far(True, 3) == "so far: it holds (3 seeds)"
    assert so_far(False, 2) == "so far: it does not hold (2 seeds)"
