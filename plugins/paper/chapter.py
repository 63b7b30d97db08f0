"""The tables, figures and claims of the chapter that put layer norm into Listen, Attend and Spell, and of its slides.

A. Ben Othman 2018. The chapter gives no settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from duoln.plugins.paper.claims import Claim, Entry, Length, RunRule
from duoln.plugins.paper.findings import nothing_moves_less, smoother
from duoln.plugins.paper.rules import Metric, at_best, better, earlier, sooner

_PHONES = Metric("test_per", "lowest", "test PER", ".3f")
_WORDS = Metric("test_wer", "lowest", "test WER", ".3f")
_LOSS = Metric("dev_nll", "lowest", "dev NLL", ".3f")
_OF_TIMIT = Length(15_947, "table 1: the baseline's steps")
_OF_LIBRISPEECH = Length(96_785, "the baseline's steps on LibriSpeech")
_LIBRISPEECH = {"source": "librispeech"}
_NO_LIBRISPEECH = "LibriSpeech was not at hand for the runs that are kept; the task reads its files"


def _earlier(winner: str, loser: str, settings: Mapping[str, str] | None = None) -> RunRule:
    """Steps are those to the best model on dev."""
    return earlier(winner, loser, Metric("dev_per", "lowest", "dev PER"), stopped=True, settings=settings or {})


CHAPTER: tuple[Entry, ...] = (
    Entry("chapter, table 1", "LAS", "steps and error on TIMIT, with layer norm in the encoder and without",
          "no recipe; TIMIT is licensed", (
              Claim("layer norm in the encoder lowers the error", better("encoder", ("none",), (_PHONES,)),
                    "PER .268 without, .245 with", _OF_TIMIT),
              Claim("layer norm in the encoder lowers the number of steps", _earlier("encoder", "none"),
                    "15,947 steps without, 9,976 with", _OF_TIMIT)), task="las"),
    Entry("chapter, table 2", "LAS", "word error rate and steps on LibriSpeech",
          "no recipe; LibriSpeech is not at hand everywhere, and its subset is not named", (
              Claim("layer norm in the encoder lowers the word error rate",
                    better("encoder", ("none",), (_WORDS,), settings=_LIBRISPEECH), "WER .426 without, .401 with",
                    _OF_LIBRISPEECH, _NO_LIBRISPEECH),
              Claim("layer norm in the encoder lowers the number of steps",
                    _earlier("encoder", "none", _LIBRISPEECH), "96,785 steps without, 64,354 with",
                    _OF_LIBRISPEECH, _NO_LIBRISPEECH)), task="las"),
    Entry("chapter, table 3", "LAS", "error and steps on TIMIT: layer norm in the encoder, the decoder, or both",
          "its eq. 6 has a factor too many; its rates are called WER and are PER", (
              Claim("the encoder alone has a lower error than both", better("encoder", ("both",), (_PHONES,)),
                    "PER .253 with both, .245 with the encoder alone", _OF_TIMIT),
              Claim("the encoder alone needs fewer steps than both", _earlier("encoder", "both"),
                    "15,552 steps with both, 9,976 with the encoder alone", _OF_TIMIT),
              Claim("layer norm in both lowers the error", better("both", ("none",), (_PHONES,)),
                    "PER .268 without, .253 with", _OF_TIMIT),
              Claim("layer norm in the decoder alone raises the error", better("none", ("decoder",), (_PHONES,)),
                    "PER .268 without, .666 with", _OF_TIMIT)), task="las"),
    Entry("chapter, figures 1-3", "LAS", "validation loss against steps: TIMIT and LibriSpeech, with layer norm in the "
          "encoder and without; TIMIT, in the encoder, the decoder or both", "no values", (
              Claim("figure 1: layer norm in the encoder makes it fall faster", sooner("encoder", "none", (_LOSS,)),
                    "", _OF_TIMIT),
              Claim("figure 2: the same on LibriSpeech", sooner("encoder", "none", (_LOSS,), settings=_LIBRISPEECH), "",
                    _OF_LIBRISPEECH, _NO_LIBRISPEECH),
              Claim("figure 3: the decoder alone converges earlier than the encoder alone",
                    _earlier("decoder", "encoder"), "", _OF_TIMIT),
              Claim("figure 3: it does so at a higher loss", better("encoder", ("decoder",), (_LOSS,), at_best), "",
                    _OF_TIMIT)), task="las", curves=True),
    Entry("chapter, figures 4-6", "LAS", "distributions of the weights: baseline, encoder, decoder", "no values", (
        Claim("the variants' weights side by side", None, unmeasured="no numbers; duoln report --out DIR draws ours"),),
          task="las"),
    Entry("chapter, figure 7", "LAS", "the training loss against steps", "no values", (
        Claim("the loss of the variants over time", None,
              unmeasured="the chapter's curves have no values to compare with; duoln paper --html draws ours"),),
          task="las", curves=True),
    Entry("chapter, figures 8-10", "LAS", "attention: baseline, encoder alone, decoder alone", "no values", (
        Claim("attention fails with layer norm in the decoder", None,
              unmeasured="no numbers; the plug-in's RESULTS.md shows ours, where it is spread out"),), task="las"),
    Entry("chapter, 4.3.1", "LAS", "why it helps, read from figures 4-6", "it has no measure of the shift", (
        Claim("layer norm has nothing to do with reducing the covariate shift",
              nothing_moves_less("encoder", "decoder", "both")),), analysis="shift"),
    Entry("chapter, 4.3.1, smoothness", "LAS", "why it helps, after Santurkar et al. 2018",
          "it has no measure; ours is along the gradient, where they measured it",
          tuple(Claim(f"layer norm in {part} lowers the loss' Lipschitz constant", smoother(variant))
                for part, variant in (("the encoder", "encoder"), ("the decoder", "decoder"), ("both", "both"))),
          analysis="smoothness"),
    Entry("slides", "LAS", "the paper's equations and its table 2 again", "", (
        Claim("short weights make the learning rate grow", None,
              unmeasured="the converse of section 5.2.2, whose row measures it; the rest is the paper's"),)),
)
