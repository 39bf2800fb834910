"""The name that somebody most likely meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when none is close."""
    # Only a wrong name pays for loading the matcher.
    from difflib import get_close_matches

    spelled = {candidate.casefold(): candidate for candidate in known}
    close = get_close_matches(name.casefold(), spelled, n=1, cutoff=0.6)
    return spelled[close[0]] if close else None


def meant(name: str, known: Iterable[str]) -> str:
    """A question for the end of a message, such as ` (did you mean 'email'?)`; often empty."""
    close = nearest_name(name, known)
    return f" (did you mean {close!r}?)" if close is not None else ""
