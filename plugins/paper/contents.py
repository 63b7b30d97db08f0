"""The figures, tables, equations and numbered claims of *Layer Normalization* (Ba, Kiros, Hinton 2016), in its order,
and of the chapter that puts layer norm into Listen, Attend and Spell, with its slides (A. Ben Othman 2018).

Facts that a task has itself (title, settings, the paper's figures for each variant, metrics) are not repeated here.
Where the paper says "faster" without a number, any saving of updates counts; where it has a number, that number does.
The chapter gives no settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duoln.plugins.paper.rules import (
    FindingRule,
    Metric,
    RunRule,
    alike,
    at_best,
    better,
    denied,
    earlier,
    gains_grow,
    less_sensitive,
    moves_less,
    nothing_moves_less,
    quadratic,
    rarer_at_border,
    robust,
    smoother,
    solves,
    sooner,
    stable,
    stated,
    unchanged,
    whole_table,
)


class Length(NamedTuple):
    """The length of the paper's training."""

    updates: int
    source: str
    """The place that says so."""
    batch: int | None = None
    """If the paper trains with several batch sizes for equally many epochs: the batch size of these updates."""

    def at(self, batch_size: int) -> int:
        """The updates at a batch size."""
        return self.updates if self.batch is None else round(self.updates * self.batch / batch_size)


class Claim(NamedTuple):
    """One claim, and the rule that decides it."""

    text: str
    rule: RunRule | FindingRule | None
    """None if nothing here measures the claim."""
    published: str = ""
    """The paper's figures; empty if it has none."""
    unmeasured: str = ""
    """The reason why there is no rule, or why no run is kept; empty if there is one."""
    length: Length | None = None
    """The length of the training, if it is not that of the task."""


class Entry(NamedTuple):
    """One figure, table, equation or passage."""

    where: str
    section: str
    shows: str
    open: str
    """Remarks on what the paper leaves open or has wrong, or what cannot be repeated; empty if there is nothing."""
    claims: Sequence[Claim]
    task: str = ""
    """The task that trains it."""
    analysis: str = ""
    """The kind of `duoln analyze` that measures it."""
    curves: bool = False
    """True for curves and for learning over time: ours are drawn beside it."""


LENGTHS = {
    "order_embeddings": Length(88_500, "100 epochs of 885 updates (the authors' code; figure 1 ends at 90,000)"),
    "attentive_reader": Length(800_000, "figure 2's axis"),
    "skip_thoughts": Length(1_000_000, "table 3's caption: 1M updates"),
    "draw": Length(78_000, "section 6.4: 200 epochs; 390 updates each"),
    "handwriting": Length(200_000, "figure 5's axis"),
    "mnist": Length(25_740, "figure 6: 60 epochs; 429 updates each at batch 128", batch=128),
    "convnet": Length(100_000, "not in the paper: 200 epochs of 500 updates, as Salimans and Kingma 2016"),
    "sequential_mnist": Length(100_000, "the published code: 200 epochs of 500 updates"),
    "las": Length(15_947, "table 1: the baseline's steps"),
}
"""The length of the paper's training by task."""
_RATE = ("learning_rate",)
"""The setting in which variants may differ: each has its best one."""

_RECALLS = [Metric(f"dev_image_r{k}", "highest", f"dev image R@{k}", ".1f") for k in (1, 5, 10)]
_RECALL_SUM = Metric("dev_image_sum", "highest", "dev image R@1 + R@5 + R@10", ".1f")
_READER_ERROR = Metric("valid_error", "lowest", "valid error", ".3f", level="valid_most_frequent_error")
_SICK_R = Metric("sick_r", "highest", "SICK r", ".3f")
_SICK_RHO = Metric("sick_rho", "highest", "SICK rho", ".3f")
_SICK_MSE = Metric("sick_mse", "lowest", "SICK MSE", ".3f")
_MR, _CR, _SUBJ, _MPQA = (Metric(f"{name.lower()}_accuracy", "highest", name, ".1f")
                          for name in ("MR", "CR", "SUBJ", "MPQA"))
_BOUND = Metric("test_bound", "lowest", "test bound, nats", ".2f")
_WRITING = Metric("train_nll", "lowest", "train nats", ".1f")
_TRAIN_NLL = Metric("train_nll", "lowest", "train NLL")
_TEST_NLL, _TEST_ERROR = Metric("test_nll", "lowest", "test NLL"), Metric("test_error", "lowest", "test error", ".2%")
_READ_ERROR = Metric("valid_error", "lowest", "valid error", ".1%")
_READ_TEST = Metric("test_error", "lowest", "test error", ".1%")
_PHONES = Metric("test_per", "lowest", "test PER", ".3f")
_WORDS = Metric("test_wer", "lowest", "test WER", ".3f")
_SPELT, _LOSS = Metric("dev_per", "lowest", "dev PER"), Metric("dev_nll", "lowest", "dev NLL", ".3f")
_LIBRISPEECH = {"source": "librispeech"}


def _retrieval(way: str) -> list[Metric]:
    return [*(Metric(f"test_{way}_r{k}", "highest", f"{way} R@{k}", ".1f") for k in (1, 5, 10)),
            Metric(f"test_{way}_mean_rank", "lowest", f"{way} mean rank", ".1f")]


def _on_librispeech(text: str, rule: RunRule, published: str = "") -> Claim:
    return Claim(text, rule, published, "LibriSpeech was not at hand for the runs that are kept; the task reads its "
                 "files", Length(96_785, "the baseline's steps on LibriSpeech"))


def _column(metric: Metric, original: str, plain: str, normalised: str, month: str) -> Claim:
    """A column of table 3."""
    return Claim(f"layer norm improves {metric.heading}", better("ln", ("none",), (metric,)),
                 f"{plain} without, {normalised} with, {month} after a month; original skip-thoughts {original}")


ENTRIES: tuple[Entry, ...] = (
    Entry("text", "abstract", "the computation in training and at test", "", analysis="equations", claims=[
        Claim("layer norm's is exactly the same", stated("abstract", "layer norm"))]),
    Entry("text, cases", "3", "dependencies between training cases", "", analysis="equations", claims=[
        Claim("layer norm brings none", stated("3", "layer norm")),
        Claim("batch norm does", denied("3", "batch norm"))]),
    Entry("eq. 2", "3", "batch norm of a layer's summed inputs", "", analysis="equations", claims=[
        Claim("our batch norm is the equation", stated("eq. 2", "batch norm"))]),
    Entry("eq. 3", "3", "the layer norm of a layer's summed inputs",
          "no epsilon is given; ours is 1e-5, inside the root", analysis="equations", claims=[
        Claim("our layer norm is the equation", stated("eq. 3, 15", "layer norm"))]),
    Entry("text", "3", "covariate shift: how far the distributions of layers' inputs move between updates", "it has no "
          "measure of the shift; ours are the speech recogniser's layers", analysis="shift", claims=[
        Claim(f"fixed means and variances of summed inputs reduce it, in {part}", moves_less(variant))
        for part, variant in (("an encoder", "encoder"), ("a decoder", "decoder"), ("both", "both"))]),
    Entry("eq. 4", "3.1", "the layer-normalised recurrent network", "eq. 4 norms W_h h + W_x x together, so it does "
          "see the scale of W_h alone", analysis="equations", claims=[
        Claim("our layer-normalised RNN is the equation", stated("eq. 4", "layer-normalised RNN"))]),
    Entry("text", "3.1", "gradients and states of recurrent networks over time", "100 steps, weights W_h at their "
          "start, scaled by 0.5 to 4; that a layer-normalised LSTM or GRU does not see this scale is already in eq. 20 "
          "and 26", analysis="stability", claims=[
        Claim(f"the hidden-to-hidden dynamics of a layer-normalised {cell.upper()} are much more stable", stable(cell))
        for cell in ("rnn", "lstm", "gru")]),
    Entry("text, lengths", "3.1", "test sequences longer than those of training", "the adding problem at 50 time "
          "steps, tested at 75, 100 and 200; batch norm by statistics of each time step, of the last one for what is "
          "longer", analysis="adding_lengths", claims=[
        Claim("they are a problem for batch norm", solves("batch", "above")),
        Claim("they are none for layer norm", solves("layer", "below"))]),
    Entry("text", "4", "norms as reparametrisations of the network", "", analysis="equations", claims=[
        Claim("batch norm, by expected statistics, and weight norm are", stated("4", "batch norm", "weight norm")),
        Claim("layer norm is not", denied("4", "layer norm"))]),
    Entry("table 1", "5.1", "which re-scalings and re-centrings leave the output of a normalised layer", "",
          analysis="invariance", claims=[
        Claim("every cell is right", whole_table())]),
    Entry("eq. 5-7", "5.1", "layer norm under changes of the weights and of one case", "the text has weight norm stay "
          "when the dataset is re-scaled; the table, rightly, has not", analysis="invariance", claims=[
        Claim("eq. 6: a re-scaled and a re-centred weight matrix leave the output",
              unchanged(("layer", "weight matrix re-scaling"), ("layer", "weight matrix re-centring"))),
        Claim("eq. 7: a re-scaled training case leaves the output",
              unchanged(("layer", "single training case re-scaling"))),
        Claim("text: a re-scaled dataset leaves the output of all three norms",
              unchanged(*((norm, "dataset re-scaling") for norm in ("batch", "weight", "layer"))))]),
    Entry("text, its end", "5.1", "a norm of the inputs, before the weights", "", analysis="equations", claims=[
        Claim("re-scaled and re-centred weights change its output",
              denied("5.1", *(f"layer norm before the weights: they are {what}"
                              for what in ("re-scaled", "re-centred"))))]),
    Entry("eq. 8", "5.2.1", "KL of a small step is a quadratic form of the Fisher information", "", analysis="geometry",
          claims=[
        Claim("a tenth of a step has a tenth of the error", quadratic())]),
    Entry("eq. 9-12", "5.2.2", "the Fisher information of generalised linear models", "", analysis="geometry", claims=[
        Claim("every block is exact", stated("eq. 12", "plain model"))]),
    Entry("eq. 13-14", "5.2.2", "the Fisher information of normalised models", "layer norm's outputs share mu and "
          "sigma, which the equations leave out", analysis="geometry", claims=[
        Claim("exact for batch norm", stated("eq. 13", "batch norm")),
        Claim("exact for weight norm", stated("eq. 13", "weight norm")),
        Claim("exact for layer norm's gains and biases", stated("eq. 13", "layer norm, blocks of gains")),
        Claim("exact for layer norm's weights",
              stated("eq. 13", "layer norm, blocks of weights:", "layer norm, blocks of weights with"))]),
    Entry("text", "5.2.2", "long weights learn slowly in normalised models", "", analysis="geometry", claims=[
        Claim("the norm of w_i doubled, the curvature along it is halved (batch and weight norm)",
              stated("5.2.2", "batch and weight norm"), "a factor of 1/2; by the exact matrix it is 1/4"),
        Claim("layer norm's output stays when the norm of one w_i is doubled", stated("5.2.2", "layer norm: |w_i|")),
        Claim("updates lengthen the weights, so the learning rate falls by itself",
              stated("5.2.2", "normalised models", "and |W|^2 grows"))]),
    Entry("text, its end", "5.2.2", "learning the magnitude of the weights is robust to inputs scaled or shifted",
          "logistic outputs that become sure of their predictions lower the metric of the other models",
          analysis="magnitude", claims=[
        Claim("inputs times 4 leave the metric along the gains of batch and layer norm",
              robust("inputs x 4", "batch", "layer"), "weight norm and the plain model are not robust"),
        Claim("inputs plus 3 leave the metric along the gains of batch norm", robust("inputs + 3", "batch")),
        Claim("inputs plus 3 leave the metric along the gains of layer norm", robust("inputs + 3", "layer"))]),
    Entry("table 2", "6.1", "retrieval of captions and images by order embeddings, with and without layer norm",
          "whether time is updates or seconds; COCO's VGG-19 features are no longer at hand everywhere",
          task="order_embeddings", claims=[
        Claim("layer norm improves every metric of caption retrieval",
              better("ln", ("none",), _retrieval("caption"), free=_RATE),
              "R@1 46.6, R@5 79.3, R@10 89.1, mean rank 5.2 without; 48.5, 80.6, 89.8, 5.1 with"),
        Claim("layer norm improves every metric of image retrieval",
              better("ln", ("none",), _retrieval("image"), free=_RATE),
              "R@1 37.8, R@5 73.6, R@10 85.7, mean rank 7.9 without; 38.9, 74.3, 86.3, 7.6 with"),
        Claim("layer norm has its best model in 60 % of the time that the baseline takes to its own",
              earlier("ln", "none", _RECALL_SUM, 0.6, free=_RATE), "60 % of the time")]),
    Entry("figure 1", "6.1", "recall of image retrieval on the dev set against updates: R@1 from 34 to 43, R@5 from 71 "
          "to 78, R@10 from 84 to 90, in 90,000 updates", "the curves have no values in the text",
          task="order_embeddings", curves=True, claims=[
        Claim(f"layer norm needs fewer updates for any {m.heading}", sooner("ln", "none", (m,), free=_RATE))
        for m in _RECALLS]),
    Entry("figure 2", "6.2", "validation error of the attentive reader against updates, from 1.0 to 0.4 in 800,000",
          "no number for layer norm; the rule that chose four sentences of a story was not published",
          task="attentive_reader", curves=True, claims=[
        Claim("layer norm trains faster than the baseline", sooner("ln", "none", (_READER_ERROR,))),
        Claim("layer norm trains faster than recurrent batch norm", sooner("ln", "bn", (_READER_ERROR,))),
        Claim("layer norm ends at a better validation error than the baseline",
              better("ln", ("none",), (_READER_ERROR,), at_best), "the baseline's least error is 50.3 %"),
        Claim("layer norm ends at a better validation error than both batch norms",
              better("ln", ("bn", "bn-everywhere"), (_READER_ERROR,), at_best),
              "their least errors are 49.5 and 50.0 %"),
        Claim("an initial gain of 1 is clearly better than 0.1",
              better("ln", ("ln-gain-0.1",), (_READER_ERROR,), at_best))]),
    Entry("table 3", "6.3", "skip-thoughts judged by seven figures of other tasks",
          "BookCorpus is not distributed any more", task="skip_thoughts", claims=[
        _column(_SICK_R, ".848", ".842", ".854", ".858"),
        _column(_SICK_RHO, ".778", ".767", ".785", ".788"),
        _column(_SICK_MSE, ".287", ".298", ".277", ".270"),
        _column(_MR, "75.5", "77.3", "79.5", "79.4"),
        _column(_CR, "79.3", "81.8", "82.6", "83.1"),
        _column(_SUBJ, "92.1", "92.6", "93.4", "93.7"),
        _column(_MPQA, "86.9", "87.9", "89.0", "89.3"),
        Claim("a month of training improves layer norm's model further (dagger)", None,
              "better in six columns of seven", unmeasured="it takes 1.7 million updates")]),
    Entry("figure 3", "6.3", "six of table 3's figures against updates, up to a million",
          "the curves have no values in the text", task="skip_thoughts", curves=True, claims=[
        Claim("layer norm is faster in each", sooner("ln", "none", (_SICK_R, _SICK_MSE, _MR, _CR, _SUBJ, _MPQA)))]),
    Entry("figure 4", "6.4", "DRAW's bound on binarised MNIST's test set against epochs: baseline, weight norm, layer "
          "norm, from 100 to 80 nats in 100 epochs", "latent size, windows, clipping and start are not given; the "
          "weight norm curve is not described; \"almost twice\" is read as 60 % of the updates", task="draw",
          curves=True, claims=[
        Claim("layer norm converges almost twice as fast", sooner("ln", "none", (_BOUND,), 0.6),
              "almost twice as fast"),
        Claim("layer norm ends at a better bound", better("ln", ("none",), (_BOUND,)),
              "82.36 nats without, 82.09 with, after 200 epochs")]),
    Entry("figure 5", "6.5", "negative log-likelihood of handwriting against updates, from 0 to -900 nats in 200,000, "
          "train and test", "no values; rate, split and which sums are normed are not given; \"comparable\" is read as "
          "5 %", task="handwriting", curves=True, claims=[
        Claim("layer norm converges much faster", sooner("ln", "none", (_WRITING,))),
        Claim("its final log-likelihood is comparable", alike(("ln", "none"), _WRITING, 0.05))]),
    Entry("figure 6", "6.6", "permutation-invariant MNIST: train NLL from 1 to 1e-7, test error from .025 to .005, in "
          "60 epochs, with batches of 128 and 4", "no values; activation, start and rate are not given", task="mnist",
          curves=True, claims=[
        *(Claim(f"layer norm's train NLL falls faster than that of batch norm, batch {size}",
                sooner("ln", "bn", (_TRAIN_NLL,), settings={"batch_size": size})) for size in (128, 4)),
        Claim("layer norm is less sensitive to the batch size than batch norm",
              less_sensitive(("ln", "bn"), _TEST_ERROR, "batch_size", (4, 128))),
        Claim("layer norm is also faster than batch norm of the hidden layers alone, batch 128",
              sooner("ln", "bn-hidden", (_TRAIN_NLL,), settings={"batch_size": 128}), "not in the paper"),
        Claim("layer norm is better without one of the logits, whose scale is the confidence",
              better("ln", ("ln-logits",), (_TEST_NLL,), at_best, {"batch_size": 128})),
        Claim("train NLL falls faster without one of the logits",
              sooner("ln", "ln-logits", (_TRAIN_NLL,), settings={"batch_size": 128}), "not in the paper")]),
    Entry("text", "6.7", "ConvNets with layer norm and batch norm", "no data set, network or number", task="convnet",
          curves=True, claims=[
        Claim("layer norm is faster than no norm", sooner("ln", "none", (_TEST_NLL,))),
        Claim("batch norm is better than both", better("bn", ("ln", "none"), (_TEST_ERROR,)))]),
    Entry("text, borders", "6.7", "units whose receptive fields lie near the border of an image", "no measure; ours is "
          "the share of images in which a unit is on, on 1,700 images of CIFAR-10", analysis="borders", claims=[
        Claim("they are turned on less often than the rest of their layer", rarer_at_border("none"))]),
    Entry("text", "7", "where recurrent networks benefit most", "the adding problem, at one rate for each norm",
          analysis="length_and_batch", claims=[
        Claim("long sequences", gains_grow("length", "batch_size", "greatest")),
        Claim("small mini-batches", gains_grow("batch_size", "length", "least"))]),
    Entry("text, a case", "7", "invariance to shifting and scaling the features of a training case", "table 1 has, "
          "rightly, no invariance to shifts: W (x + c) = W x + W c", analysis="equations", claims=[
        *(Claim(f"layer norm's output stays when they are {what}",
                stated("7", f"layer norm: the features of each case are {what}")) for what in ("scaled", "shifted"))]),
    Entry("Cooijmans et al. 2017, section 5.1", "Cooijmans", "an LSTM that reads permuted digits pixel by pixel, with "
          "recurrent batch norm and without", "layer norm is not in that paper", task="sequential_mnist", curves=True,
          claims=[
        Claim("batch norm learns sooner than no norm", sooner("bn", "none", (_READ_ERROR,), free=_RATE)),
        Claim("batch norm ends at a lower test error", better("bn", ("none",), (_READ_TEST,), free=_RATE),
              "4.6 % with, 9.8 % without"),
        Claim("layer norm learns sooner than no norm", sooner("ln", "none", (_READ_ERROR,), free=_RATE)),
        Claim("layer norm learns sooner than batch norm", sooner("ln", "bn", (_READ_ERROR,), free=_RATE))]),
    Entry("eq. 15-31", "supplement", "the LSTM, the GRU, and the LSTM of DRAW, plain and layer-normalised",
          "gain and bias are swapped in the sentences below eq. 22, 28 and 31; duoln selftest compares every fused "
          "rule of a machine with the same cells", analysis="equations", claims=[
        Claim("eq. 15-19: our LSTM is the equations", stated("eq. 17-19", "LSTM")),
        Claim("eq. 20-22: our layer-normalised LSTM is the equations", stated("eq. 20-22", "layer-normalised LSTM")),
        Claim("eq. 23-25: our GRU is the equations", stated("eq. 23-25", "GRU")),
        Claim("eq. 26-28: our layer-normalised GRU is the equations", stated("eq. 26-28", "layer-normalised GRU")),
        Claim("eq. 29-31: our LSTM of DRAW is the equations", stated("eq. 29-31", "LSTM of DRAW"))]),
    Entry("eq. 32-35", "supplement", "curvature when the gains alone move", "eq. 32 drops the spread of the inputs; "
          "eq. 35 equates four terms with one", analysis="geometry", claims=[
        Claim("eq. 32: batch norm", stated("eq. 32", "batch norm's gains"),
              "exact only where Cov[y|x] is constant and outputs are independent"),
        Claim("eq. 33: layer norm", stated("eq. 33", "layer norm's gains")),
        Claim("eq. 34: weight norm", stated("eq. 34", "weight norm's gains")),
        Claim("eq. 35: the plain model, the term of two outputs", stated("eq. 35", "plain model")),
        Claim("eq. 35: its left side as printed", stated("eq. 35", "the left side"))]),
    Entry("chapter, table 1", "LAS", "steps and error on TIMIT, with layer norm in the encoder and without",
          "no recipe; TIMIT is licensed", task="las", claims=[
        Claim("layer norm in the encoder lowers the error", better("encoder", ("none",), (_PHONES,)),
              "PER .268 without, .245 with"),
        Claim("layer norm in the encoder lowers the number of steps", earlier("encoder", "none", _SPELT, stopped=True),
              "15,947 steps without, 9,976 with")]),
    Entry("chapter, table 2", "LAS", "word error rate and steps on LibriSpeech", "no recipe; LibriSpeech is not at "
          "hand everywhere, and its subset is not named", task="las", claims=[
        _on_librispeech("layer norm in the encoder lowers the word error rate",
            better("encoder", ("none",), (_WORDS,), settings=_LIBRISPEECH), "WER .426 without, .401 with"),
        _on_librispeech("layer norm in the encoder lowers the number of steps",
            earlier("encoder", "none", _SPELT, stopped=True, settings=_LIBRISPEECH),
            "96,785 steps without, 64,354 with")]),
    Entry("chapter, table 3", "LAS", "error and steps on TIMIT: layer norm in the encoder, the decoder, or both",
          "its eq. 6 has a factor too many; its rates are called WER and are PER", task="las", claims=[
        Claim("the encoder alone has a lower error than both", better("encoder", ("both",), (_PHONES,)),
              "PER .253 with both, .245 with the encoder alone"),
        Claim("the encoder alone needs fewer steps than both", earlier("encoder", "both", _SPELT, stopped=True),
              "15,552 steps with both, 9,976 with the encoder alone"),
        Claim("layer norm in both lowers the error", better("both", ("none",), (_PHONES,)),
              "PER .268 without, .253 with"),
        Claim("layer norm in the decoder alone raises the error", better("none", ("decoder",), (_PHONES,)),
              "PER .268 without, .666 with")]),
    Entry("chapter, figures 1-3", "LAS", "validation loss against steps: TIMIT and LibriSpeech, with layer norm in the "
          "encoder and without; TIMIT, in the encoder, the decoder or both", "no values", task="las", curves=True,
          claims=[
        Claim("figure 1: layer norm in the encoder makes it fall faster", sooner("encoder", "none", (_LOSS,))),
        _on_librispeech("figure 2: the same on LibriSpeech",
            sooner("encoder", "none", (_LOSS,), settings=_LIBRISPEECH)),
        Claim("figure 3: the decoder alone converges earlier than the encoder alone",
              earlier("decoder", "encoder", _SPELT, stopped=True)),
        Claim("figure 3: it does so at a higher loss", better("encoder", ("decoder",), (_LOSS,), at_best))]),
    Entry("chapter, figures 4-6", "LAS", "distributions of the weights: baseline, encoder, decoder", "no values",
          task="las", claims=[
        Claim("the variants' weights side by side", None, unmeasured="no numbers; duoln report --out DIR draws ours")]),
    Entry("chapter, figure 7", "LAS", "the training loss against steps", "no values", task="las", curves=True, claims=[
        Claim("the loss of the variants over time", None,
              unmeasured="the chapter's curves have no values to compare with; duoln paper --html draws ours")]),
    Entry("chapter, figures 8-10", "LAS", "attention: baseline, encoder alone, decoder alone", "no values", task="las",
          claims=[
        Claim("attention fails with layer norm in the decoder", None,
              unmeasured="no numbers; the plug-in's RESULTS.md shows ours, where it is spread out")]),
    Entry("chapter, 4.3.1", "LAS", "why it helps, read from figures 4-6", "it has no measure of the shift",
          analysis="shift", claims=[
        Claim("layer norm has nothing to do with reducing the covariate shift",
              nothing_moves_less("encoder, decoder, both"))]),
    Entry("chapter, 4.3.1, smoothness", "LAS", "why it helps, after Santurkar et al. 2018", "it has no measure; ours "
          "is along the gradient, where they measured it", analysis="smoothness", claims=[
        Claim(f"layer norm in {part} lowers the loss' Lipschitz constant", smoother(variant))
        for part, variant in (("the encoder", "encoder"), ("the decoder", "decoder"), ("both", "both"))]),
    Entry("slides", "LAS", "the paper's equations and its table 2 again", "", claims=[
        Claim("short weights make the learning rate grow", None,
              unmeasured="the converse of section 5.2.2, whose row measures it; the rest is the paper's")]),
)
