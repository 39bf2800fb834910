"""The offsets that a partition of a table lacks, and how many of them have an explanation.

Exact while there are at most a few million gaps. Where the table's record of removed offsets is not
exact, numbers decide: as many as were recorded may be missing in a range, and no more.
"""

from __future__ import annotations

from typing import Final

from calve.tables.ranges import Range, Ranges
from calve.tables.runs import Runs

_RUNS_MAX: Final = 2_000_000


class _Vague:
    """A range of which it is recorded how many offsets were removed, and not which."""

    def __init__(self, recorded: Range) -> None:
        self.recorded = recorded
        self.found = Ranges()

    def take(self, gaps: Runs) -> None:
        self.found = self.found.merged(
            Ranges.of_runs(gaps.between(self.recorded.first, self.recorded.end))
        )


class Gaps:
    """What is missing in one partition: given piece by piece, then explained source by source."""

    def __init__(self, recorded: Ranges) -> None:
        self._recorded = Runs.of_pairs((each.first, each.end) for each in recorded if each.is_exact)
        self._vague = [_Vague(each) for each in recorded if not each.is_exact]
        self._vague_spans = Runs.of_pairs(
            (each.recorded.first, each.recorded.end) for each in self._vague
        )
        self._unexplained = Runs.empty()
        self._counted: list[Range] = []
        self.removed = Ranges()

    def add(self, gaps: Runs) -> None:
        if not len(gaps):
            return
        self.removed = self.removed.merged(Ranges.of_runs(gaps.intersection(self._recorded)))
        gaps = gaps.minus(self._recorded)
        first, end = (int(gaps.firsts[0]), int(gaps.ends[-1])) if len(gaps) else (0, 0)
        for vague in self._vague:
            if vague.recorded.first < end and first < vague.recorded.end:
                vague.take(gaps)
        self._unexplained = Runs.joined([self._unexplained, gaps.minus(self._vague_spans)])
        if len(self._unexplained) > _RUNS_MAX:
            self._counted.extend(Ranges.of_runs(self._unexplained))
            self._unexplained = Runs.empty()

    def close(self) -> None:
        """All gaps are known: hold what is recorded in number alone against them."""
        for vague in self._vague:
            excess = vague.found.count - vague.recorded.count
            if excess <= 0:
                self.removed = self.removed.merged(vague.found)
            else:
                # Which of them were removed, nobody knows.
                span = Range(vague.found.ranges[0].first, vague.found.ranges[-1].end, 1)
                self.removed = self.removed.merged(_part(span, vague.recorded.count))
                self._counted.extend(_part(span, excess))
        self._vague.clear()

    @property
    def unexplained(self) -> Ranges:
        return Ranges.of_runs(self._unexplained).merged(Ranges.of(self._counted))

    @property
    def span(self) -> Runs:
        """Between which offsets an explanation is still wanted."""
        return Runs.of_pairs((each.first, each.end) for each in self.unexplained)

    def explain_ranges(self, source: Ranges) -> Ranges:
        """The same for what a table was told; in number alone, it explains all gaps or none."""
        gaps = self._unexplained
        counts = ((each, gaps.between(each.first, each.end).count) for each in source)
        told = [(each.first, each.end) for each, count in counts if count <= each.count]
        return self.explain(Runs.of_pairs(told))

    def explain(self, source: Runs) -> Ranges:
        """Take out what a source says is gone; what that was."""
        hits = Ranges.of_runs(self._unexplained.intersection(source))
        self._unexplained = self._unexplained.minus(source)
        left: list[Range] = []
        for each in self._counted:
            hit = min(each.count, source.between(each.first, each.end).count)
            if hit:
                hits = hits.merged(_part(each, hit))
            if hit < each.count:
                left.extend(_part(each, each.count - hit))
        self._counted = left
        return hits


def _part(whole: Range, count: int) -> Ranges:
    return Ranges((Range(whole.first, whole.end, count),))
