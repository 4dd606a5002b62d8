r"""The paper's numbers and ours, as a page that is a function of measured JSON and nothing else.

What is measured are the dictionaries that ``linearizer.evaluation`` writes: those of ``benchmarks``
(``found = gathered(Path("benchmarks"))``), those of ``linearizer reproduce``, or one alone.
"""

from .claims import OTHERWISE, VERDICTS, Claim, Section, counted
from .pages import EXPERIMENTS, claims_of, gathered, page, sections

__all__ = ["EXPERIMENTS", "OTHERWISE", "VERDICTS", "Claim", "Section", "claims_of", "counted",
           "gathered", "page", "sections"]  # fmt: skip
