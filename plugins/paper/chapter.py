"""The tables, figures and claims of the chapter that put layer norm into Listen, Attend and Spell, and of its slides.

A. Ben Othman 2018. The chapter gives no settings.
"""

from __future__ import annotations

from duoln.plugins.paper.claims import Claim, Entry, Length
from duoln.plugins.paper.findings import moves_less, smoother
from duoln.plugins.paper.rules import Metric, better, earlier

_PHONES = Metric("test_per", "lowest", "test PER", ".3f")
_WORDS = Metric("test_wer", "lowest", "test WER", ".3f")
_OF_TIMIT = Length(15_947, "table 3: the baseline's steps")
_OF_LIBRISPEECH = Length(96_785, "the baseline's steps on LibriSpeech")
_LIBRISPEECH = {"source": "librispeech"}
_NO_LIBRISPEECH = "LibriSpeech was not at hand for the runs that are kept; the task reads its files"

CHAPTER: tuple[Entry, ...] = (
    Entry("chapter, table 1", "LAS", "related work", "", (
        Claim("figures of other authors' recognisers", None, unmeasured="they are others' work, not trained here"),)),
    Entry("chapter, table 2", "LAS", "word error rate and steps on LibriSpeech",
          "no recipe; LibriSpeech is not at hand everywhere, and its subset is not named", (
              Claim("layer norm in the listener lowers the word error rate",
                    better("encoder", ("none",), (_WORDS,), settings=_LIBRISPEECH), "WER .426 without, .401 with",
                    _OF_LIBRISPEECH, _NO_LIBRISPEECH),
              Claim("layer norm in the listener lowers the number of steps",
                    earlier("encoder", "none", settings=_LIBRISPEECH), "96,785 steps without, 64,354 with",
                    _OF_LIBRISPEECH, _NO_LIBRISPEECH)), task="las"),
    Entry("chapter, table 3", "LAS", "error rate and steps on TIMIT: layer norm in the listener, the speller, both or "
          "neither", "its eq. 6 has a factor too many; its rates are called WER and are PER; TIMIT is licensed", (
              Claim("layer norm in the listener lowers the error", better("encoder", ("none",), (_PHONES,)),
                    "PER .268 without, .245 with", _OF_TIMIT),
              Claim("layer norm in the listener lowers the number of steps", earlier("encoder", "none"),
                    "15,947 steps without, 9,976 with", _OF_TIMIT),
              Claim("layer norm in both lowers the error", better("both", ("none",), (_PHONES,)),
                    "PER .268 without, .253 with", _OF_TIMIT),
              Claim("layer norm in the speller alone raises the error", better("none", ("decoder",), (_PHONES,)),
                    "PER .268 without, .666 with", _OF_TIMIT)), task="las"),
    Entry("chapter, figures 1-3", "LAS", "what they show is in none of the sources from which this list was made", "", (
        Claim("figures 1 to 3", None, unmeasured="they have no experiment here"),)),
    Entry("chapter, figure 7", "LAS", "the training loss against steps", "no values", (
        Claim("the loss of the variants over time", None,
              unmeasured="the chapter's curves have no values to compare with; duoln paper --html draws ours"),),
          task="las", curves=True),
    Entry("chapter, figures 8-10", "LAS", "three variants side by side", "no values", (
        Claim("the variants side by side", None,
              unmeasured="no numbers; duoln report --out DIR draws our weights, duoln sample RUN our attention"),),
          task="las"),
    Entry("chapter, text", "LAS", "why normalisation helps", "it has no measure of the shift", (
        Claim("layer norm in the listener reduces the internal covariate shift", moves_less("encoder")),
        Claim("layer norm in the speller reduces it", moves_less("decoder")),
        Claim("layer norm in both reduces it", moves_less("both"))), analysis="shift"),
    Entry("chapter, text on smoothness", "LAS", "why normalisation helps",
          "it has no measure; ours is along the gradient, where Santurkar et al. 2018 measured it", (
              Claim("layer norm in the listener lowers the Lipschitz constants of the loss and of its gradient",
                    smoother("encoder")),
              Claim("layer norm in the speller lowers them", smoother("decoder")),
              Claim("layer norm in both lowers them", smoother("both"))), analysis="smoothness"),
    Entry("slides", "LAS", "the paper's equations and its table 2 again", "", (
        Claim("nothing that is not in the paper", None, unmeasured="see the rows of the paper"),)),
)
