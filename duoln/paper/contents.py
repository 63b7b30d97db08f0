"""The figures, tables and numbered claims of *Layer Normalization* (Ba, Kiros, Hinton 2016), in its order.

And of the chapter that put layer norm into Listen, Attend and Spell (A. Ben Othman 2018). Facts that a task has itself
(title, settings, the paper's figures for each variant, metrics) are not repeated here.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One figure, table or claim."""

    where: str
    section: str
    claim: str
    open: str
    """What the paper leaves open or has wrong, or what cannot be repeated; empty if there is nothing."""
    task: str = ""
    """The task that trains it."""
    analysis: str = ""
    """The kind of `duoln analyze` that measures it, if no task does."""
    check: str = ""
    """Another command that shows it, if there is neither."""


_GEOMETRY = "geometry"

CONTENTS: tuple[Entry, ...] = (
    Entry("eq. 2-3", "3", "the layer norm of a layer's summed inputs",
          "no epsilon is given; ours is 1e-5, inside the root", check="duoln selftest"),
    Entry("eq. 4", "3.1", "hidden-to-hidden dynamics of a layer-normalised RNN are much more stable",
          "eq. 4 norms W_h h + W_x x together, so it does see the scale of W_h alone", analysis="stability"),
    Entry("table 1, eq. 5-7", "5.1", "which re-scalings and re-centrings leave the output of a normalised layer",
          "the text has weight norm stay when the dataset is re-scaled; the table, rightly, has not",
          analysis="invariance"),
    Entry("eq. 8", "5.2.1", "KL of a small step is a quadratic form of the Fisher information", "", analysis=_GEOMETRY),
    Entry("eq. 9-14", "5.2.2", "the Fisher information of generalised linear models; long weights learn slowly",
          "not exact for layer norm's weights; the curvature along a doubled w_i falls to 1/4, not 1/2",
          analysis=_GEOMETRY),
    Entry("table 2", "6.1", "layer norm improves order embeddings on every metric, in 60 % of the time",
          "whether time is updates or seconds; COCO's VGG-19 features are no longer at hand everywhere",
          task="order_embeddings"),
    Entry("figure 1", "6.1", "recall of image retrieval against updates: layer norm needs fewer for any recall",
          "the curves have no values in the text", task="order_embeddings"),
    Entry("figure 2", "6.2", "the layer-normalised attentive reader trains faster and to a better validation error",
          "no number for layer norm; the rule that chose four sentences of a story was not published",
          task="attentive_reader"),
    Entry("table 3", "6.3", "layer norm improves skip-thoughts in all seven columns",
          "BookCorpus is not distributed any more", task="skip_thoughts"),
    Entry("figure 3", "6.3", "performance against updates: layer norm is faster and ends better",
          "the curves have no values in the text", task="skip_thoughts"),
    Entry("figure 4", "6.4", "layer-normalised DRAW converges almost twice as fast",
          "latent size, windows, clipping and start are not given; the weight norm curve is not described",
          task="draw"),
    Entry("figure 5", "6.5", "layer-normalised handwriting synthesis: comparable likelihood, much faster",
          "no values; rate, split and which sums are normed are not given", task="handwriting"),
    Entry("figure 6", "6.6", "on permutation-invariant MNIST layer norm is robust to the batch size, and its train "
          "NLL falls faster than batch norm's", "no values; activation, start and rate are not given", task="mnist"),
    Entry("text", "6.7", "ConvNets: layer norm is faster than no norm, batch norm is better than both",
          "no data set, network or number", task="convnet"),
    Entry("eq. 15-31", "supplement", "the layer-normalised LSTM, GRU, and the LSTM of DRAW",
          "gain and bias are swapped in the sentences below eq. 22, 28 and 31", check="duoln selftest"),
    Entry("eq. 32-35", "supplement", "curvature when the gains alone move",
          "eq. 32 is no identity; eq. 35 equates four terms with one", analysis=_GEOMETRY),
    Entry("chapter, table 3", "LAS",
          "layer norm in the listener lowers the error and the number of steps; in the speller alone it fails",
          "no settings are given; its eq. 6 has a factor too many; TIMIT is licensed", task="las"),
)
