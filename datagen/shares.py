"""How many prompts each source gives: exact counts as they are, weights by largest remainder, to the row.

Caps come first: a weighted source whose share is above its cap gives its cap, and what it leaves goes to the other weighted
sources in proportion to their weights, because the manifest asks for `total` prompts. A source that has fewer prompts than
its share is another matter: that is seen only when it is read, is reported, and is never silently made up from another domain.
"""

from __future__ import annotations

from fractions import Fraction

from manifests.schema import Manifest, Source


def allotments(manifest: Manifest) -> dict[str, int]:
    """Return prompts wanted per source name. Weighted ones add up to the total unless caps make that impossible."""
    wanted = {
        source.name: min(source.count, source.cap or source.count)
        for source in manifest.sources
        if source.count is not None
    }
    weighted = [source for source in manifest.sources if source.weight is not None]
    left = total_prompts(manifest)
    while capped := [
        source for source in weighted if source.cap is not None and _quota(source, weighted, left) > source.cap
    ]:
        wanted.update({source.name: source.cap for source in capped if source.cap is not None})
        left -= sum(source.cap for source in capped if source.cap is not None)
        weighted = [source for source in weighted if source not in capped]
    return {**wanted, **_largest_remainder(weighted, left)}


def total_prompts(manifest: Manifest) -> int:
    """Return prompts wanted over all weighted sources; a token budget is divided by the expected tokens per prompt."""
    if manifest.total is not None:
        return manifest.total
    return (manifest.total_tokens or 0) // manifest.expected_tokens


def _largest_remainder(sources: list[Source], total: int) -> dict[str, int]:
    quotas = {source.name: _quota(source, sources, total) for source in sources}
    floors = {name: quota.numerator // quota.denominator for name, quota in quotas.items()}
    spare = total - sum(floors.values()) if sources else 0
    for name in sorted(quotas, key=lambda name: floors[name] - quotas[name])[
        :spare
    ]:  # stable: ties go to the earlier source
        floors[name] += 1
    return floors


def _quota(source: Source, sources: list[Source], total: int) -> Fraction:
    return total * _weight(source) / sum(map(_weight, sources))


def _weight(source: Source) -> Fraction:
    return Fraction(str(source.weight))  # the decimal that was written, so 0.1 is a tenth and quotas are exact
